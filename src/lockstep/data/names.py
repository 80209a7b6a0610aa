"""What the atom types of systems are called, where the model does not say it."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.data.dataset import open_folder
from lockstep.data.hdf5 import Hdf5Files
from lockstep.data.search import find_systems
from lockstep.data.system import listed_names, listed_types


def type_names(systems: str | Sequence[str], rglob_patterns: Sequence[str] | None = None) -> list[str]:
    """The names in the systems' `type_map.raw`, in the order in which they come; numbers where no system has names."""
    names: dict[str, None] = {}
    highest = 0
    files = Hdf5Files()
    for path in find_systems(systems, rglob_patterns, option="training.training_data.systems"):
        folder = open_folder(path, files)
        if folder.contains("type_map.raw"):
            names |= dict.fromkeys(listed_names(folder))
        else:
            highest = max(highest, int(listed_types(folder).max()))
    files.close()
    return list(names) or [f"type_{number}" for number in range(highest + 1)]
