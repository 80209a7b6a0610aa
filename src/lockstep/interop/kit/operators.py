"""DeePMD-kit's compiled operators for PyTorch: left out where they were built for another torch.

Its package refuses to be imported then. The operators serve compressed models and dynamics in LAMMPS; without them
DeePMD-kit trains, evaluates and converts as ever, and says itself where it cannot do without.
"""

from __future__ import annotations

import configparser
import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

_MODULE = "deepmd.pt.cxx_op"


def leave_out_operators() -> str | None:
    """Let `deepmd.pt` be imported without its operators if they do not fit; returns the torch they were built for."""
    built_for = _built_for()
    if built_for in (None, metadata.version("torch").partition("+")[0]) or _MODULE in sys.modules:
        return None
    stand_in = ModuleType(_MODULE)
    stand_in.ENABLE_CUSTOMIZED_OP = False  # type: ignore[attr-defined]
    sys.modules[_MODULE] = stand_in
    return built_for


def _built_for() -> str | None:
    """The version of torch in DeePMD-kit's build record, read without importing DeePMD-kit."""
    found = importlib.util.find_spec("deepmd")
    places = list(found.submodule_search_locations or []) if found else []
    record = configparser.ConfigParser()
    record.read([Path(place) / "lib" / "run_config.ini" for place in places])
    return record.get("CONFIG", "pt_version", fallback="") or None
