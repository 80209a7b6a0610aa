"""LMDB environments as DeePMD-kit has them: a msgpack map for each frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np

NAMES = {"coord": "coords", "box": "cells", "energy": "energies", "force": "forces", "virial": "virials"}


def write_lmdb(
    folder: Path,
    frames: Sequence[tuple[Sequence[int], Mapping[str, np.ndarray]]],
    names: Sequence[str] | None,
    **metadata: Any,
) -> Path:
    """Frames (types of the atoms, and arrays by the names of a set's files) as an environment."""
    environment = lmdb.open(str(folder), map_size=2**26)
    with environment.begin(write=True) as transaction:
        info = {"nframes": len(frames), **({"type_map": list(names)} if names else {}), **metadata}
        transaction.put(b"__metadata__", msgpack.packb(info))
        for number, (types, arrays) in enumerate(frames):
            content = {NAMES.get(name, name): encoded(values) for name, values in arrays.items()}
            content["atom_types"] = encoded(np.array(types, dtype=np.int32))
            transaction.put(f"{number:012d}".encode(), msgpack.packb(content))
    environment.close()
    return folder


def encoded(values: np.ndarray) -> dict[str, Any]:
    values = np.asarray(values)
    return {"type": str(values.dtype), "shape": list(values.shape), "data": values.tobytes()}


def of_set(arrays: Mapping[str, np.ndarray], types: Sequence[int]) -> list[tuple[Sequence[int], dict[str, np.ndarray]]]:
    """The frames of a set, one by one."""
    count = len(arrays["coord"])
    return [(types, {name: values[frame] for name, values in arrays.items()}) for frame in range(count)]
