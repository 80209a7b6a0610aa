"""Frames on demand: from a system and frame numbers to the rows of the files in which they lie."""

from __future__ import annotations

import numpy as np

from lockstep.data.arrays import Array
from lockstep.data.hdf5 import Hdf5Files
from lockstep.data.index import Index
from lockstep.data.lmdb import LmdbFrames, is_lmdb
from lockstep.data.npy import NpyReader
from lockstep.data.search import is_hdf5
from lockstep.data.store import FrameReader


class FrameFiles:
    """The files behind an index. Safe to use from several threads."""

    def __init__(self, index: Index, hdf5: Hdf5Files, npy: NpyReader) -> None:
        self._index, self._hdf5, self._npy = index, hdf5, npy
        self._lmdb = LmdbFrames()

    def of(self, index: Index) -> FrameFiles:
        """The same files behind another index."""
        return FrameFiles(index, self._hdf5, self._npy)

    def close(self) -> None:
        """Give back file handles; reading again opens them anew."""
        self._hdf5.close()
        self._npy.close()
        self._lmdb.close()

    def raw(self, system: int, frames: np.ndarray, array: Array) -> np.ndarray:
        """Frames as on disk, gathered from the sets they lie in: [B, *shape of a frame]."""
        index = self._index
        column = index.column(array.name)
        path = index.name(system)
        reader = self._reader(path)
        shape = (len(frames), *array.shape(int(index.natoms[system])))
        result: np.ndarray | None = None
        for row, chosen, local in self._locate(system, frames):
            layout = index.layouts[index.layout[row, column]]
            name = index.set_names[index.set_name[row]]
            part = reader.read(path, name, layout, int(index.set_frames[row]), local)
            part = array.spread(part, index.tables[int(index.table[system])].types)
            if len(chosen) == len(frames):
                return part.reshape(shape)
            result = np.empty((len(frames), part.shape[1]), dtype=np.float64) if result is None else result
            result[chosen] = part
        assert result is not None
        return result.reshape(shape)

    def _reader(self, path: str) -> FrameReader:
        if is_lmdb(path):
            return self._lmdb
        return self._hdf5 if is_hdf5(path) else self._npy

    def name(self, system: int, frame: int) -> str:
        """A frame by its number within its set, the one that the user can look up in the file."""
        return f"frame {self._locate(system, np.array([frame]))[0][2][0]} (counted from 0)"

    def where(self, system: int, frame: int, array: Array) -> str:
        """The file in which an array of a frame lies."""
        index = self._index
        row = self._locate(system, np.array([frame]))[0][0]
        layout = index.layouts[index.layout[row, index.column(array.name)]]
        return f"{index.name(system)}/{index.set_names[index.set_name[row]]}/{layout.file}"

    def _locate(self, system: int, frames: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(row of the set, positions in `frames`, frames within the set) for every set that is touched."""
        first, count = int(self._index.first_set[system]), int(self._index.n_sets[system])
        if count == 1:
            return [(first, np.arange(len(frames)), frames)]
        ends = np.cumsum(self._index.set_frames[first : first + count])
        of_frame = np.searchsorted(ends, frames, side="right")
        starts = ends - self._index.set_frames[first : first + count]
        located = []
        for item in sorted(set(of_frame.tolist())):
            chosen = np.flatnonzero(of_frame == item)
            located.append((first + item, chosen, frames[chosen] - starts[item]))
        return located
