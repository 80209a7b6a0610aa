"""Small systems on disk for the tests of the data package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data import Array

CELL = np.array([[9.0, 0.0, 0.0], [0.5, 8.0, 0.0], [0.0, 0.3, 7.0]])
NAMES = ("O", "H")
FPARAM = Array("fparam", tail=(2,), required=True)
APARAM = Array("aparam", tail=(3,), atomic=True, required=True)


def make_arrays(n_frames: int, natoms: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Every array a set can have, filled with numbers that name their place well enough."""
    rng = np.random.default_rng([seed, n_frames, natoms])
    return {
        "coord": rng.uniform(0, 7, (n_frames, 3 * natoms)),
        "box": np.tile(CELL.reshape(-1), (n_frames, 1)) + rng.uniform(0, 0.1, (n_frames, 1)),
        "energy": rng.normal(-5, 1, n_frames),
        "force": rng.normal(0, 1, (n_frames, 3 * natoms)),
        "virial": rng.normal(0, 1, (n_frames, 9)),
        "atom_ener": rng.normal(0, 1, (n_frames, natoms)),
        "atom_pref": rng.uniform(0, 1, (n_frames, natoms)),
        "fparam": rng.normal(0, 1, (n_frames, 2)),
        "aparam": rng.normal(0, 1, (n_frames, natoms * 3)),
    }


def write_system(
    folder: Path,
    sets: list[dict[str, np.ndarray]],
    types: list[int],
    names: tuple[str, ...] | None = NAMES,
    nopbc: bool = False,
) -> Path:
    """Write a deepmd/npy system."""
    folder.mkdir(parents=True)
    (folder / "type.raw").write_text("".join(f"{number}\n" for number in types))
    if names is not None:
        (folder / "type_map.raw").write_text("".join(f"{name}\n" for name in names))
    if nopbc:
        (folder / "nopbc").touch()
    for number, arrays in enumerate(sets):
        target = folder / f"set.{number:03d}"
        target.mkdir()
        for name, values in arrays.items():
            np.save(target / f"{name}.npy", values)
    return folder


def write_group(
    file: Any, group: str, sets: list[dict[str, np.ndarray]], types: list[int], names: tuple[str, ...] = NAMES
) -> None:
    """Write the same as a group of an open HDF5 file."""
    root = file.require_group(group)
    root["type.raw"] = np.array(types)
    root["type_map.raw"] = np.array(names, dtype="S")
    for number, arrays in enumerate(sets):
        for name, values in arrays.items():
            root[f"set.{number:03d}/{name}.npy"] = values


def simple_system(folder: Path, n_frames: int = 4, natoms: int = 3, seed: int = 0) -> Path:
    """One set with energies and forces; types 0 1 1 0 1 1 ..."""
    arrays = make_arrays(n_frames, natoms, seed)
    chosen = {name: arrays[name] for name in ("coord", "box", "energy", "force")}
    return write_system(folder, [chosen], [int(number % 3 > 0) for number in range(natoms)])
