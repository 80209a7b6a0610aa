"""Which library multiplies on this processor."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lockstep.products.openblas import OpenBlas, loaded

WIDE = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})
"""OpenBLAS's kernels with AVX-512, by the names that it gives them."""


class Choice(NamedTuple):
    """What multiplies.

    Attributes:
        library: None for torch's own.
        why: for the log; empty where there is nothing to choose.
    """

    library: OpenBlas | None
    why: str


@cache
def choose() -> Choice:
    """The library of this process; the same in every run on the same processor and environment."""
    info = _cpu_info()
    if platform.machine() != "x86_64" or "GenuineIntel" in info or "avx512f" not in info.split():
        return Choice(None, "")
    library = loaded()
    if library is None:
        return Choice(None, "")
    if library.core in WIDE:
        return Choice(library, f"NumPy's OpenBLAS ({library.core}), faster on this processor than torch's MKL")
    forced = os.environ.get("OPENBLAS_CORETYPE")
    reason = f"; OPENBLAS_CORETYPE={forced} in the environment keeps it from that" if forced else ""
    return Choice(None, f"torch's MKL; NumPy's OpenBLAS ({library.core}) could use AVX-512 here and does not{reason}")


def _cpu_info() -> str:
    """The first processor's section; empty where the system has no such file."""
    try:
        return Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return ""
