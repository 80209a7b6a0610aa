"""The flat index: everything known about all systems, in a few arrays.

Data sets of 50,000 small systems are common, so nothing here is an object per system: a system is a row, a
set is a row, and what repeats (ways to lay out an array, lists of atom types, set names) is stored once.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from lockstep.data.store import ArrayFormat
from lockstep.data.system import SetDescription, SystemDescription, TypeTable

Key = TypeVar("Key", bound=Hashable)


class Strings:
    """Many strings in one block of bytes."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._block = bytearray()
        self._ends = array("q", [0])
        for string in strings:
            self.append(string)

    def append(self, string: str) -> None:
        self._block += string.encode(errors="surrogateescape")
        self._ends.append(len(self._block))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._block[self._ends[number] : self._ends[number + 1]].decode(errors="surrogateescape")


class Unique(Generic[Key]):
    """Numbers for values that repeat."""

    def __init__(self) -> None:
        self.values: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def number(self, value: Key) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


@dataclass(frozen=True)
class Index:
    """All systems of a data set.

    Per system: `path` (row of `paths`), `natoms`, `n_frames`, `first_set`, `n_sets`, `table` (row of
    `tables`), `mixed`, `periodic`. Per set: `set_name` (row of `set_names`), `set_frames`, and `layout`
    [sets, arrays], the row of `layouts` for each of `arrays`, -1 where the set has no such array.
    """

    arrays: tuple[str, ...]
    paths: Strings
    path: np.ndarray
    natoms: np.ndarray
    n_frames: np.ndarray
    first_set: np.ndarray
    n_sets: np.ndarray
    table: np.ndarray
    mixed: np.ndarray
    periodic: np.ndarray
    tables: Sequence[TypeTable]
    set_name: np.ndarray
    set_frames: np.ndarray
    layout: np.ndarray
    set_names: Sequence[str]
    layouts: Sequence[ArrayFormat]

    def __len__(self) -> int:
        return len(self.path)

    def name(self, system: int) -> str:
        return self.paths[int(self.path[system])]

    def column(self, name: str) -> int:
        """The column of `layout` of an array."""
        return self.arrays.index(name)

    def has(self, name: str) -> np.ndarray:
        """For each system, whether it has the array (all sets of a system have the same arrays)."""
        return np.asarray(self.layout[self.first_set, self.column(name)] >= 0)

    def take(self, systems: np.ndarray) -> Index:
        """An index of some of the systems; the rows of their sets stay where they are."""
        columns = ("path", "natoms", "n_frames", "first_set", "n_sets", "table", "mixed", "periodic")
        return replace(self, **{column: getattr(self, column)[systems] for column in columns})


class IndexBuilder:
    """Grows an index system by system."""

    def __init__(self, arrays: Sequence[str]) -> None:
        self.arrays = tuple(arrays)
        self._paths = Strings()
        self._systems = array("q")
        self._sets = array("q")
        self._layout = array("i")
        self._tables: list[TypeTable] = []
        self._table_numbers: dict[int, int] = {}
        self._set_names: Unique[str] = Unique()
        self._layouts: Unique[ArrayFormat] = Unique()
        self._latest: tuple[SetDescription, array[int]] | None = None

    def append(self, system: SystemDescription) -> None:
        table = self._table_numbers.setdefault(id(system.table), len(self._tables))
        if table == len(self._tables):
            self._tables.append(system.table)
        row = (
            len(self._paths),
            len(system.table.types),
            sum(item.n_frames for item in system.sets),
            len(self._sets) // 2,
            len(system.sets),
            table,
            system.mixed,
            system.periodic,
        )
        self._paths.append(system.path)
        self._systems.extend(row)
        for item in system.sets:
            self._append_set(item)

    def _append_set(self, item: SetDescription) -> None:
        self._sets.extend((self._set_names.number(item.name), item.n_frames))
        if self._latest is None or self._latest[0] is not item:  # sets that are alike share their description
            number, found = self._layouts.number, item.layouts
            row = array("i", [number(found[name]) if name in found else -1 for name in self.arrays])
            self._latest = item, row
        self._layout.extend(self._latest[1])

    def finish(self) -> Index:
        systems = np.array(self._systems, dtype=np.int64).reshape(-1, 8)
        sets = np.array(self._sets, dtype=np.int64).reshape(-1, 2)
        path, natoms, n_frames, first_set, n_sets, table, mixed, periodic = map(np.ascontiguousarray, systems.T)
        return Index(
            arrays=self.arrays,
            paths=self._paths,
            path=path,
            natoms=natoms,
            n_frames=n_frames,
            first_set=first_set,
            n_sets=n_sets,
            table=table,
            mixed=mixed.astype(bool),
            periodic=periodic.astype(bool),
            tables=self._tables,
            set_name=sets[:, 0].copy(),
            set_frames=sets[:, 1].copy(),
            layout=np.array(self._layout, dtype=np.int32).reshape(-1, len(self.arrays)),
            set_names=self._set_names.values,
            layouts=self._layouts.values,
        )
