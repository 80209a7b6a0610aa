"""How many neighbours atoms have, and how close the closest are: what `dp neighbor-stat` tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.evaluation import ahead, all_pairs
from lockstep.data import DataSet, worker_count
from lockstep.data.hdf5 import Hdf5Files, Hdf5Folder
from lockstep.data.npy import NpyFolder
from lockstep.data.search import find_systems, is_hdf5
from lockstep.errors import UserError
from lockstep.geometry import Cutoff
from lockstep.observe.progress import progress

_UNLIMITED = 1 << 30
_CHUNK_ATOMS = 4096


@dataclass(frozen=True)
class Neighbours:
    """Of all atoms of all frames.

    Attributes:
        min_distance: the shortest distance within the cutoff in Angstrom; infinite when nobody has a neighbour.
        max_count: [ntypes] the most neighbours of each type that any atom has; a single number for all types
            together when these are not told apart.
        lonely: systems with a frame in which no two atoms are neighbours.
    """

    min_distance: float
    max_count: NDArray[np.int64]
    lonely: tuple[str, ...] = ()


def count_neighbours(dataset: DataSet, rcut: float, one_type: bool = False) -> Neighbours:
    """Look at every frame, with one thread a core."""
    ntypes = len(dataset.type_map)
    cutoff = Cutoff(rcut, 0.0, (_UNLIMITED,) * ntypes)
    counts, distance = np.zeros(1 if one_type else ntypes, dtype=np.int64), np.inf
    lonely: dict[str, None] = {}

    def look(chunk: tuple[int, NDArray]) -> tuple[str, int, NDArray, float]:
        system, frames = chunk
        pairs = all_pairs(dataset.read(system, frames), cutoff)
        occupied = np.concatenate([p.occupied for p in pairs])
        shortest = min(_shortest(p.vector) for p in pairs)
        most = occupied.sum(axis=1, keepdims=True) if one_type else occupied
        return dataset.name(system), len(frames), most.max(axis=0), shortest

    with progress("counting neighbours", dataset.total_frames, "frames") as bar:
        for name, frames, most, shortest in ahead(look, _chunks(dataset), max(1, worker_count())):
            counts, distance = np.maximum(counts, most), min(distance, shortest)
            if not np.isfinite(shortest):
                lonely[name] = None
            bar.advance(frames)
    return Neighbours(distance, counts, tuple(lonely))


def types_of_data(systems: str | Sequence[str]) -> list[str]:
    """The names of all types of the systems, in the order in which their `type_map.raw` mention them."""
    files = Hdf5Files()
    names: dict[str, None] = {}
    try:
        for path in find_systems(systems):
            folder = Hdf5Folder(path, files) if is_hdf5(path) else NpyFolder(path)
            if not folder.contains("type_map.raw"):
                raise UserError(
                    "the system has no type_map.raw, so its types have no names", where=path, remedy="give them: -t O H"
                )
            names.update(dict.fromkeys(folder.text("type_map.raw").decode(errors="replace").split()))
    finally:
        files.close()
    return list(names)


def _shortest(vectors: NDArray) -> float:
    return float(np.sqrt((vectors**2).sum(axis=1).min())) if len(vectors) else np.inf


def _chunks(dataset: DataSet) -> Iterator[tuple[int, NDArray]]:
    for system, (count, natoms) in enumerate(zip(dataset.n_frames, dataset.natoms, strict=True)):
        size = max(1, _CHUNK_ATOMS // int(natoms))
        for start in range(0, int(count), size):
            yield system, np.arange(start, min(start + size, int(count)))
