"""The training data as the rest of the program sees them: systems by number, frames on demand."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep.data.hdf5 import Hdf5Files, Hdf5Folder
from lockstep.data.index import Index, IndexBuilder
from lockstep.data.labels import BOX, COORD, LABEL_NAMES, REAL_TYPES, Array, label_table
from lockstep.data.npy import NpyFolder, NpyReader
from lockstep.data.search import find_systems, is_hdf5
from lockstep.data.store import FrameReader
from lockstep.data.system import NOT_IN_MODEL, SystemDescription, Types, TypeTable, describe, unknown_element
from lockstep.errors import DataError

log = logging.getLogger(__name__)

_CHUNK, _OPENERS = 256, 8
_FLAT = 1e-6  # volume over the product of the edge lengths below which a cell cannot be a crystal's


@dataclass(frozen=True)
class MicroBatch:
    """Some frames of one system.

    Attributes:
        number: position in the stream of micro-batches, -1 outside it.
        system: number of the system.
        frames: [B] numbers of the frames in the whole data set: one number, one frame.
        coord: [B, n, 3].
        cell: [B, 3, 3], rows are lattice vectors; None without periodicity.
        types: [B, n] in the model's type_map, -1 for padding atoms.
        labels: what the system has of the labels asked for; see `DataSet`.
    """

    number: int
    system: int
    frames: np.ndarray
    coord: np.ndarray
    cell: np.ndarray | None
    types: np.ndarray
    labels: dict[str, np.ndarray]


class DataSet:
    """Systems on disk. Opening reads headers only; frames are read, and checked, when they are wanted.

    Args:
        systems: what the input file says under `systems`; see `search.find_systems`.
        type_map: the model's.
        labels: the labels wanted; files of others are not even opened.
        numb_fparam, numb_aparam: the model's numbers of frame and atomic parameters; when not zero,
            every system must have them.
        required: further labels that every system must have.
        optional: labels that may be missing although a number of parameters says otherwise.
        rglob_patterns, input_folder, option: see `search.find_systems`.
    """

    def __init__(
        self,
        systems: str | Path | Sequence[str | Path],
        type_map: Sequence[str],
        *,
        labels: Collection[str] = LABEL_NAMES,
        numb_fparam: int = 0,
        numb_aparam: int = 0,
        required: Collection[str] = (),
        optional: Collection[str] = (),
        rglob_patterns: Sequence[str] | None = None,
        input_folder: str | Path | None = None,
        option: str = "systems",
    ) -> None:
        self.type_map = tuple(type_map)
        self._labels = tuple(label for label in label_table(numb_fparam, numb_aparam) if label.name in labels)
        self._hdf5 = Hdf5Files()
        self._npy = NpyReader()
        self._set_index(self._open(find_systems(systems, rglob_patterns, input_folder, option)))
        parameters = {"fparam": numb_fparam, "aparam": numb_aparam}
        needed = {name for name, count in parameters.items() if count > 0} - set(optional)
        self._require(sorted(needed | set(required)))

    def _open(self, paths: Sequence[str]) -> Index:
        builder = IndexBuilder([COORD.name, BOX.name, REAL_TYPES.name, *(label.name for label in self._labels)])
        types = Types(self.type_map)
        unsaid = 0
        chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
        # Opening is waiting for the file system, above all for a remote one, so several chunks wait together.
        with ThreadPoolExecutor(min(_OPENERS, len(chunks)), thread_name_prefix="open") as pool:
            for systems in pool.map(lambda chunk: self._describe(chunk, types), chunks):
                for system in systems:
                    builder.append(system)
                    unsaid += system.unsaid
        if unsaid:
            log.warning("%d system(s) have neither box.npy nor a nopbc file: taken as not periodic", unsaid)
        return builder.finish()

    def _describe(self, paths: Sequence[str], types: Types) -> list[SystemDescription]:
        folders = (Hdf5Folder(path, self._hdf5) if is_hdf5(path) else NpyFolder(path) for path in paths)
        return [describe(folder, types, self._labels) for folder in folders]

    def _set_index(self, index: Index) -> None:
        self._index = index
        self.n_frames = index.n_frames
        self.natoms = index.natoms
        self.periodic = index.periodic
        self.mixed = index.mixed
        self.first_frame = np.concatenate([[0], np.cumsum(index.n_frames)[:-1]])

    def _require(self, names: Sequence[str]) -> None:
        for name in names:
            lacking = np.flatnonzero(~self.has(name))
            if len(lacking):
                raise DataError(
                    f"{name}.npy is missing, but the input needs it in every system"
                    + (f" ({len(lacking)} systems lack it)" if len(lacking) > 1 else ""),
                    where=self.name(int(lacking[0])),
                    remedy=f"add {name}.npy to its sets, or change the option that asks for it",
                )

    def __len__(self) -> int:
        return len(self._index)

    @property
    def n_systems(self) -> int:
        return len(self._index)

    @property
    def total_frames(self) -> int:
        return int(self.n_frames.sum())

    def name(self, system: int) -> str:
        """Path of a system, as found."""
        return self._index.name(system)

    def has(self, label: str) -> np.ndarray:
        """For each system, whether it has a label."""
        if label not in self._index.arrays:
            return np.zeros(len(self), dtype=bool)
        return self._index.has(label)

    def labels(self, system: int) -> tuple[str, ...]:
        """The labels of a system."""
        row = self._index.layout[self._index.first_set[system]]
        columns = self._index.arrays
        return tuple(label.name for label in self._labels if row[columns.index(label.name)] >= 0)

    def types(self, system: int) -> np.ndarray | None:
        """The types of a system's atoms in the model's type_map; None where every frame has its own."""
        return None if self.mixed[system] else self._table(system).types

    def take(self, systems: Sequence[int] | np.ndarray) -> DataSet:
        """A data set of some of the systems, in the order given."""
        other = object.__new__(DataSet)
        other.__dict__.update(self.__dict__)
        other._set_index(self._index.take(np.asarray(systems)))
        return other

    def read(self, system: int, frames: Sequence[int] | np.ndarray, number: int = -1) -> MicroBatch:
        """Frames of a system (numbers within the system), checked to be fit for training.

        Safe to call from several threads.
        """
        frames = np.asarray(frames, dtype=np.int64)
        assert len(frames)
        assert ((frames >= 0) & (frames < self.n_frames[system])).all()
        coord = self._floats(system, frames, COORD)
        cell = self._cells(system, frames) if self.periodic[system] else None
        if self.mixed[system]:
            types = self._mixed_types(system, frames)
        else:
            types = np.tile(self._table(system).types, (len(frames), 1))
        mine = self.labels(system)
        labels = {label.name: self._floats(system, frames, label) for label in self._labels if label.name in mine}
        return MicroBatch(number, system, self.first_frame[system] + frames, coord, cell, types, labels)

    def close(self) -> None:
        """Give back file handles. The data set stays usable and opens them anew."""
        self._hdf5.close()
        self._npy.close()

    def _table(self, system: int) -> TypeTable:
        return self._index.tables[int(self._index.table[system])]

    def _reader(self, path: str) -> FrameReader:
        return self._hdf5 if is_hdf5(path) else self._npy

    def _raw(self, system: int, frames: np.ndarray, array: Array) -> np.ndarray:
        """Frames as on disk, gathered from the sets they lie in: [B, *shape of a frame]."""
        index = self._index
        column = index.arrays.index(array.name)
        path = index.name(system)
        reader = self._reader(path)
        shape = (len(frames), *array.shape(int(index.natoms[system])))
        result: np.ndarray | None = None
        for row, chosen, local in self._locate(system, frames):
            layout = index.layouts[index.layout[row, column]]
            name = index.set_names[index.set_name[row]]
            part = reader.read(path, name, layout, int(index.set_frames[row]), local)
            if len(chosen) == len(frames):
                return part.reshape(shape)
            result = np.empty((len(frames), part.shape[1]), dtype=np.float64) if result is None else result
            result[chosen] = part
        assert result is not None
        return result.reshape(shape)

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

    def _floats(self, system: int, frames: np.ndarray, array: Array) -> np.ndarray:
        values = self._raw(system, frames, array).astype(np.float64)
        if not np.isfinite(values).all():
            bad = np.argwhere(~np.isfinite(values))[0]
            atom = f", atom {bad[1]}" if array.per_atom else ""
            raise DataError(
                f"the value is {values[tuple(bad)]} in {self._frame(system, frames[bad[0]])}{atom}",
                where=self._where(system, frames[bad[0]], array),
                remedy="remove the frame from the set, or compute it again",
            )
        return values

    def _cells(self, system: int, frames: np.ndarray) -> np.ndarray:
        cells = self._floats(system, frames, BOX)
        edges = np.sqrt((cells * cells).sum(axis=2)).prod(axis=1)
        flat = np.abs(np.linalg.det(cells)) <= _FLAT * edges
        if flat.any():
            bad = int(np.flatnonzero(flat)[0])
            raise DataError(
                f"the cell of {self._frame(system, frames[bad])} is flat: {cells[bad].round(4).tolist()}",
                where=self._where(system, frames[bad], BOX),
                remedy="correct the lattice vectors; for a molecule without a cell add an empty file "
                "named nopbc to the system",
            )
        return cells

    def _mixed_types(self, system: int, frames: np.ndarray) -> np.ndarray:
        table = self._table(system)
        numbers = self._raw(system, frames, REAL_TYPES).astype(np.int64)
        outside = (numbers < -1) | (numbers >= len(table.names))
        if outside.any():
            frame, atom = np.argwhere(outside)[0]
            raise DataError(
                f"type {numbers[frame, atom]} in {self._frame(system, frames[frame])}, atom {atom}, "
                f"is out of range: the system names {len(table.names)} types, {list(table.names)}",
                where=self._where(system, frames[frame], REAL_TYPES),
                remedy="types count from 0, and -1 marks padding; complete type_map.raw",
            )
        # The last entry translates -1, padding, into itself.
        types = np.append(table.translation, -1)[numbers]
        if (types == NOT_IN_MODEL).any():
            frame, atom = np.argwhere(types == NOT_IN_MODEL)[0]
            where = self._where(system, frames[frame], REAL_TYPES)
            raise unknown_element(table.names[numbers[frame, atom]], where, self.type_map)
        return types

    def _frame(self, system: int, frame: int) -> str:
        """A frame by its number within its set, the one that the user can look up in the file."""
        return f"frame {self._locate(system, np.array([frame]))[0][2][0]} (counted from 0)"

    def _where(self, system: int, frame: int, array: Array) -> str:
        row = self._locate(system, np.array([frame]))[0][0]
        layout = self._index.layouts[self._index.layout[row, self._index.arrays.index(array.name)]]
        return f"{self.name(system)}/{self._index.set_names[self._index.set_name[row]]}/{layout.file}"
