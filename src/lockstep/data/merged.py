"""Systems put together, so that a micro-batch may have frames of several: `batch_size` `mixed:N`.

Those that are alike in what their frames hold (a cell or none, the same labels) become one mixed-type system, whose
frames are padded to the size of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.data.arrays import ATOMS, Array
from lockstep.data.dataset import DataSet
from lockstep.data.microbatch import MicroBatch
from lockstep.errors import DataError, InputError

_PADDING = -1


def merge(dataset: DataSet) -> MergedDataSet:
    """The same frames in as few systems as there are kinds of frames."""
    kinds: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for system in range(len(dataset)):
        kinds.setdefault((bool(dataset.periodic[system]), dataset.present(system)), []).append(system)
    for array in dataset.arrays:
        if ATOMS in array.tail and dataset.has(array.name).any():
            raise InputError(
                f"{array.name} has an axis for the atoms of a frame, which frames of other sizes cannot share",
                where="training.training_data.batch_size",
                remedy="use 'auto:N' instead of 'mixed:N'",
            )
    return MergedDataSet(dataset, list(kinds.values()))


@dataclass(frozen=True)
class Places:
    """Where frames of a merged system come from: numbers of systems, and numbers within these."""

    systems: np.ndarray
    frames: np.ndarray

    def __iter__(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Every system that is touched, which of the frames it has, and their numbers within it."""
        for system in np.unique(self.systems).tolist():
            chosen = np.flatnonzero(self.systems == system)
            yield system, chosen, self.frames[chosen]


@dataclass(frozen=True)
class MergedOrigin:
    """Where frames of a micro-batch lie on disk; see `microbatch.Origin`."""

    source: DataSet
    places: Places

    def refusal(self, frame: int, reason: str, remedy: str) -> DataError:
        system, number = int(self.places.systems[frame]), self.places.frames[frame : frame + 1]
        return self.source.read(system, number).refusal(0, reason, remedy)


class MergedDataSet(DataSet):
    """Each of `groups`, numbers of systems of `source`, as one system."""

    def __init__(self, source: DataSet, groups: Sequence[Sequence[int]]) -> None:
        self.source, self.type_map, self.arrays = source, source.type_map, source.arrays
        self.groups = [np.array(group, dtype=np.int64) for group in groups]
        self._ends = [np.cumsum(source.n_frames[group]) for group in self.groups]
        self.n_frames = np.array([ends[-1] for ends in self._ends], dtype=np.int64)
        self.natoms = np.array([source.natoms[group].max() for group in self.groups], dtype=np.int64)
        self.periodic = np.array([source.periodic[group[0]] for group in self.groups])
        self.mixed = np.ones(len(self.groups), dtype=bool)
        self.first_frame = np.concatenate([[0], np.cumsum(self.n_frames)[:-1]])

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def n_systems(self) -> int:
        return len(self.groups)

    @property
    def composition_numbers(self) -> np.ndarray:
        return np.arange(len(self))

    def name(self, system: int) -> str:
        first, others = self.groups[system][0], len(self.groups[system]) - 1
        return self.source.name(int(first)) + (f" and {others} more" if others else "")

    def has(self, name: str) -> np.ndarray:
        return self.source.has(name)[[group[0] for group in self.groups]]

    def present(self, system: int) -> tuple[str, ...]:
        return self.source.present(int(self.groups[system][0]))

    def types(self, system: int) -> None:
        return None

    def take(self, systems: Sequence[int] | np.ndarray) -> MergedDataSet:
        return MergedDataSet(self.source, [self.groups[system] for system in np.asarray(systems)])

    def read(self, system: int, frames: Sequence[int] | np.ndarray, number: int = -1) -> MicroBatch:
        frames = self._checked(system, frames)
        places, natoms = self._places(system, frames), int(self.natoms[system])
        parts = [(chosen, self.source.read(own, numbers)) for own, chosen, numbers in places]
        atomic = {array.name for array in self.arrays if array.atomic}
        labels = {
            name: _joined([(at, part.labels[name]) for at, part in parts], natoms if name in atomic else None)
            for name in parts[0][1].labels
        }
        cells = [(at, part.cell) for at, part in parts if part.cell is not None]
        return replace(
            parts[0][1],
            number=number,
            system=system,
            frames=self.first_frame[system] + frames,
            coord=_joined([(at, part.coord) for at, part in parts], natoms),
            cell=_joined(cells) if cells else None,
            types=_joined([(at, part.types) for at, part in parts], natoms, _PADDING),
            labels=labels,
            origin=MergedOrigin(self.source, places),
        )

    def values(self, system: int, frames: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
        array = next(array for array in self.arrays if array.name == name)
        parts = [(at, self.source.values(own, numbers, name)) for own, at, numbers in self._places(system, frames)]
        return _joined(parts, self._padded_to(system, array))

    def frame_types(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        parts = [(at, self.source.frame_types(own, numbers)) for own, at, numbers in self._places(system, frames)]
        return _joined(parts, int(self.natoms[system]), _PADDING)

    def compositions(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        return _joined(
            [(at, self.source.compositions(own, numbers)) for own, at, numbers in self._places(system, frames)]
        )

    def close(self) -> None:
        self.source.close()

    def _padded_to(self, system: int, array: Array) -> int | None:
        return int(self.natoms[system]) if array.atomic else None

    def _places(self, system: int, frames: Sequence[int] | np.ndarray) -> Places:
        ends, frames = self._ends[system], np.asarray(frames, dtype=np.int64)
        place = np.searchsorted(ends, frames, side="right")
        group = self.groups[system]
        return Places(group[place], frames - (ends - self.source.n_frames[group])[place])


def _joined(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], natoms: int | None = None, padding: float = 0
) -> np.ndarray:
    """Frames of several systems, each at its place; with `natoms`, their second axis is padded to that length."""
    first = parts[0][1]
    shape = first.shape[1:] if natoms is None else (natoms, *first.shape[2:])
    joined = np.full((sum(len(at) for at, _ in parts), *shape), padding, dtype=first.dtype)
    for at, values in parts:
        if natoms is None:
            joined[at] = values
        else:
            joined[at, : values.shape[1]] = values
    return joined
