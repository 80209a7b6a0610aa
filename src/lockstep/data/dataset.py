"""The training data as the rest of the program sees them: systems by number, frames on demand."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lockstep.data.arrays import BOX, COORD, REAL_TYPES, Array
from lockstep.data.frames import FrameFiles
from lockstep.data.hdf5 import Hdf5Files, Hdf5Folder
from lockstep.data.index import Index, IndexBuilder
from lockstep.data.lmdb import LmdbFolder, is_lmdb
from lockstep.data.microbatch import MicroBatch, SystemOrigin
from lockstep.data.npy import NpyFolder, NpyReader, SmallFiles
from lockstep.data.physical import bad_cell, far_atom
from lockstep.data.search import find_systems, is_hdf5
from lockstep.data.store import Folder
from lockstep.data.system import NOT_IN_MODEL, Describer, SystemDescription, TypeTable, unknown_element
from lockstep.errors import DataError

log = logging.getLogger(__name__)

_CHUNK, _OPENERS = 256, 8
_NAMED = 5


def open_folder(path: str, hdf5: Hdf5Files, small: SmallFiles | None = None) -> Folder:
    """A system, whatever it lies in."""
    if is_lmdb(path):
        return LmdbFolder(path)
    return Hdf5Folder(path, hdf5) if is_hdf5(path) else NpyFolder(path, small)


@contextmanager
def without_collecting() -> Iterator[None]:
    """No search for cycles of references meanwhile: opening makes a million objects, and none of them in a cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class DataSet:
    """Systems on disk. Opening reads headers only; frames are read, and checked, when they are wanted.

    Args:
        systems: what the input file says under `systems`; see `search.find_systems`.
        type_map: the model's.
        arrays: what is wanted of every frame beside coordinates, cell and types; other files are not even opened.
        rglob_patterns, input_folder, option: see `search.find_systems`.
    """

    def __init__(
        self,
        systems: str | Path | Sequence[str | Path],
        type_map: Sequence[str],
        arrays: Sequence[Array] = (),
        *,
        rglob_patterns: Sequence[str] | None = None,
        input_folder: str | Path | None = None,
        option: str = "systems",
    ) -> None:
        self.type_map = tuple(type_map)
        self.arrays = tuple(arrays)
        self._hdf5, self._small = Hdf5Files(), SmallFiles()
        with without_collecting():
            index = self._open(find_systems(systems, rglob_patterns, input_folder, option))
        self._set_index(index, FrameFiles(index, self._hdf5, NpyReader(self._small)))
        self._require(array for array in self.arrays if array.required)

    def _open(self, paths: Sequence[str]) -> Index:
        builder = IndexBuilder([COORD.name, BOX.name, REAL_TYPES.name, *(array.name for array in self.arrays)])
        describer = Describer(self.type_map, self.arrays)
        unsaid: list[str] = []
        chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
        # Opening is waiting for the file system, above all for a remote one, so several chunks wait together.
        with ThreadPoolExecutor(min(_OPENERS, len(chunks)), thread_name_prefix="open") as pool:
            for systems in pool.map(lambda chunk: self._describe(chunk, describer), chunks):
                for system in systems:
                    builder.append(system)
                    unsaid += [system.path] if system.unsaid else []
        if unsaid:
            log.warning(
                "%d system(s) have neither box.npy nor a nopbc file: taken as not periodic (%s%s)",
                len(unsaid),
                ", ".join(unsaid[:_NAMED]),
                ", ..." if len(unsaid) > _NAMED else "",
            )
        return builder.finish()

    def _describe(self, paths: Sequence[str], describer: Describer) -> list[SystemDescription]:
        return [describer.describe(open_folder(path, self._hdf5, self._small)) for path in paths]

    def _set_index(self, index: Index, files: FrameFiles) -> None:
        self._index, self._files = index, files
        self.n_frames = index.n_frames
        self.natoms = index.natoms
        self.periodic = index.periodic
        self.mixed = index.mixed
        self.first_frame = np.concatenate([[0], np.cumsum(index.n_frames)[:-1]])

    def _require(self, arrays: Iterable[Array]) -> None:
        for array in arrays:
            lacking = np.flatnonzero(~self.has(array.name))
            if len(lacking):
                raise DataError(
                    f"{array.files[0]} is missing, but the input needs it in every system"
                    + (f" ({len(lacking)} systems lack it)" if len(lacking) > 1 else ""),
                    where=self.name(int(lacking[0])),
                    remedy=f"add {array.files[0]} to its sets, or change the option that asks for it",
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

    def has(self, name: str) -> np.ndarray:
        """For each system, whether it has an array."""
        if name not in self._index.arrays:
            return np.zeros(len(self), dtype=bool)
        return self._index.has(name)

    def present(self, system: int) -> tuple[str, ...]:
        """Names of the arrays asked for that a system has."""
        row = self._index.layout[self._index.first_set[system]]
        return tuple(array.name for array in self.arrays if row[self._index.column(array.name)] >= 0)

    def types(self, system: int) -> np.ndarray | None:
        """The types of a system's atoms in the model's type_map; None where every frame has its own."""
        return None if self.mixed[system] else self._table(system).types

    def take(self, systems: Sequence[int] | np.ndarray) -> DataSet:
        """A data set of some of the systems, in the order given."""
        other = object.__new__(DataSet)
        other.__dict__.update(self.__dict__)
        index = self._index.take(np.asarray(systems))
        other._set_index(index, self._files.of(index))
        return other

    def read(self, system: int, frames: Sequence[int] | np.ndarray, number: int = -1) -> MicroBatch:
        """Frames of a system (numbers within the system), checked to be fit for training.

        Safe to call from several threads.
        """
        frames = self._checked(system, frames)
        present = frozenset(self.present(system))
        return MicroBatch(
            number,
            system,
            self.first_frame[system] + frames,
            coord=self._coordinates(system, frames),
            cell=self._cells(system, frames) if self.periodic[system] else None,
            types=self.frame_types(system, frames),
            labels={
                array.name: self._label(system, frames, array, array.name in present)
                for array in self.arrays
                if array.name in present or array.default is not None
            },
            filled=frozenset(array.name for array in self.arrays if array.default is not None) - present,
            origin=SystemOrigin(self._files, system, frames),
        )

    def values(self, system: int, frames: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
        """One of the arrays asked for, which the system has, checked as `read` checks it."""
        array = next(array for array in self.arrays if array.name == name)
        return self._label(system, self._checked(system, frames), array, present=True)

    def frame_types(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        """[B, n] the types of the atoms of frames."""
        if self.mixed[system]:
            return self._mixed_types(system, np.asarray(frames, dtype=np.int64))
        return np.tile(self._table(system).types, (len(frames), 1))

    def compositions(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        """[B, ntypes] how many atoms of each type frames have."""
        if not self.mixed[system]:
            return np.tile(self._table(system).composition, (len(frames), 1))
        ntypes = len(self.type_map)
        types = self._mixed_types(system, np.asarray(frames, dtype=np.int64))
        numbers = np.arange(len(frames))[:, None] * (ntypes + 1) + types + 1  # the first column counts padding
        counts = np.bincount(numbers.ravel(), minlength=len(frames) * (ntypes + 1))
        return counts.reshape(len(frames), ntypes + 1)[:, 1:]

    @property
    def composition_numbers(self) -> np.ndarray:
        """For each system a number, the same where all frames have the same atoms (where frames do not differ)."""
        return self._index.table

    def close(self) -> None:
        """Give back file handles. The data set stays usable and opens them anew."""
        self._files.close()

    def _checked(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        frames = np.asarray(frames, dtype=np.int64)
        assert len(frames)
        assert frames.min() >= 0
        assert frames.max() < self.n_frames[system]
        return frames

    def _table(self, system: int) -> TypeTable:
        return self._index.tables[int(self._index.table[system])]

    def _label(self, system: int, frames: np.ndarray, array: Array, present: bool) -> np.ndarray:
        if not present:
            return array.filled(len(frames), int(self.natoms[system]))
        return array.finished(self._floats(system, frames, array))

    def _floats(self, system: int, frames: np.ndarray, array: Array) -> np.ndarray:
        values = self._files.raw(system, frames, array).astype(np.float64, copy=False)
        if not np.isfinite(values).all():
            bad = np.argwhere(~np.isfinite(values))[0]
            atom = f", atom {bad[1]}" if array.atomic else ""
            raise DataError(
                f"the value is {values[tuple(bad)]} in {self._files.name(system, frames[bad[0]])}{atom}",
                where=self._files.where(system, frames[bad[0]], array),
                remedy="remove the frame from the set, or compute it again",
            )
        return values

    def _coordinates(self, system: int, frames: np.ndarray) -> np.ndarray:
        coord = self._floats(system, frames, COORD)
        found = far_atom(coord)
        if found:
            frame, atom = found
            reason = f"atom {atom} is at {coord[frame, atom].tolist()} Angstrom"
            raise SystemOrigin(self._files, system, frames).refusal(
                frame, reason, "check the unit, or remove the frame"
            )
        return coord

    def _cells(self, system: int, frames: np.ndarray) -> np.ndarray:
        cells = self._floats(system, frames, BOX)
        found = bad_cell(cells)
        if found:
            bad, what = found
            raise DataError(
                f"the cell of {self._files.name(system, frames[bad])} {what}",
                where=self._files.where(system, frames[bad], BOX),
                remedy="correct the lattice vectors; for a molecule without a cell add an empty file "
                "named nopbc to the system",
            )
        return cells

    def _mixed_types(self, system: int, frames: np.ndarray) -> np.ndarray:
        table = self._table(system)
        numbers = self._files.raw(system, frames, REAL_TYPES).astype(np.int64)
        outside = (numbers < -1) | (numbers >= len(table.names))
        if outside.any():
            frame, atom = np.argwhere(outside)[0]
            raise DataError(
                f"type {numbers[frame, atom]} in {self._files.name(system, frames[frame])}, atom {atom}, "
                f"is out of range: the system names {len(table.names)} types, {list(table.names)}",
                where=self._files.where(system, frames[frame], REAL_TYPES),
                remedy="types count from 0, and -1 marks padding; complete type_map.raw",
            )
        if numbers.size and (numbers.max(axis=1) < 0).any():
            frame = int(np.flatnonzero(numbers.max(axis=1) < 0)[0])
            raise DataError(
                f"{self._files.name(system, frames[frame])} has no atoms: all its types are -1, which marks padding",
                where=self._files.where(system, frames[frame], REAL_TYPES),
                remedy="remove the frame from the set, or correct its types",
            )
        # The last entry translates -1, padding, into itself.
        types = np.append(table.translation, -1)[numbers]
        if (types == NOT_IN_MODEL).any():
            frame, atom = np.argwhere(types == NOT_IN_MODEL)[0]
            where = self._files.where(system, frames[frame], REAL_TYPES)
            raise unknown_element(table.names[numbers[frame, atom]], where, self.type_map)
        return types
