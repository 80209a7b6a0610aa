"""One system on disk, described and checked from its headers alone: no frame is read here."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from lockstep.data.arrays import BOX, COORD, REAL_TYPES, Array
from lockstep.data.store import ArrayFormat, Folder, Header
from lockstep.errors import DataError

_KINDS = 4096
NOT_IN_MODEL = -2  # -1 marks padding atoms in mixed-type data


class SetDescription(NamedTuple):
    """One `set.*`: its frames, and how to read each array it has."""

    name: str
    n_frames: int
    layouts: dict[str, ArrayFormat]


class TypeTable(NamedTuple):
    """How the type numbers of a system translate into the model's; shared by systems that say the same.

    Attributes:
        types: the model's type of every atom ([natoms]; placeholders in mixed-type systems).
        composition: [ntypes] how many atoms of each type that is.
        translation: the model's type for each type number of the system.
        names: the system's names of its type numbers, for error messages.
    """

    types: np.ndarray
    composition: np.ndarray
    translation: np.ndarray
    names: tuple[str, ...]


class SystemDescription(NamedTuple):
    """All that the flat index keeps of a system; `unsaid` when only the lack of a box says it is not periodic."""

    path: str
    table: TypeTable
    mixed: bool
    periodic: bool
    unsaid: bool
    sets: list[SetDescription]


class Types:
    """Reads `type.raw` and `type_map.raw`, translating into the model's type map.

    Thousands of systems usually share a handful of compositions, so equal files are parsed once.
    """

    def __init__(self, type_map: Sequence[str]) -> None:
        self.type_map = tuple(type_map)
        self._known: dict[tuple[bytes, bytes | None, bool], TypeTable] = {}

    def of(self, folder: Folder, mixed: bool) -> TypeTable:
        """The types of a system; refuses an element that is present but unknown to the model."""
        raw = folder.text("type.raw")
        names = folder.text("type_map.raw") if folder.contains("type_map.raw") else None
        table = self._known.get((raw, names, mixed))
        if table is None:
            # Threads that meet the same files at once must end with the same table.
            table = self._known.setdefault((raw, names, mixed), self._parse(folder, raw, names, mixed))
        return table

    def _parse(self, folder: Folder, raw: bytes, names_raw: bytes | None, mixed: bool) -> TypeTable:
        numbers = _integers(raw, folder.where("type.raw"))
        names = self.type_map if names_raw is None else _names(names_raw, folder.where("type_map.raw"))
        index = {name: number for number, name in enumerate(self.type_map)}
        translation = np.array([index.get(name, NOT_IN_MODEL) for name in names], dtype=np.int64)
        if mixed:  # the types are in real_atom_types.npy, and what type.raw says is a placeholder
            return self._table(np.zeros(len(numbers), dtype=np.int64), translation, names)
        if numbers.max() >= len(names):
            raise DataError(
                f"type {numbers.max()} is out of range: {_whose(names_raw)} has {len(names)}: {list(names)}",
                where=folder.where("type.raw"),
                remedy="types count from 0; complete type_map.raw or the model's type_map",
            )
        types = translation[numbers]
        if (types == NOT_IN_MODEL).any():
            element = names[int(numbers[types == NOT_IN_MODEL][0])]
            raise unknown_element(element, folder.where("type.raw"), self.type_map)
        return self._table(types, translation, names)

    def _table(self, types: np.ndarray, translation: np.ndarray, names: tuple[str, ...]) -> TypeTable:
        return TypeTable(types, np.bincount(types, minlength=len(self.type_map)), translation, names)


def listed_types(folder: Folder) -> np.ndarray:
    """The numbers in `type.raw`."""
    return _integers(folder.text("type.raw"), folder.where("type.raw"))


def listed_names(folder: Folder) -> tuple[str, ...]:
    """The names in `type_map.raw`, which the system has."""
    return _names(folder.text("type_map.raw"), folder.where("type_map.raw"))


def unknown_element(element: str, where: str, type_map: Sequence[str]) -> DataError:
    """The system has atoms of an element that the model does not know."""
    return DataError(
        f"the system has atoms of {element}, which is not in the model's type_map {list(type_map)}",
        where=where,
        remedy=f"add {element!r} to model.type_map (and its number to `sel`), or leave this system out",
    )


class Describer:
    """Reads the headers of systems and checks them against each other.

    Thousands of small systems are of a handful of kinds, so what has been seen before is not checked again: a set of
    the same atoms with the same headers.
    """

    def __init__(self, type_map: Sequence[str], wanted: Sequence[Array]) -> None:
        self._types = Types(type_map)
        self._wanted = wanted
        self._known: dict[Hashable, SetDescription] = {}

    def describe(self, folder: Folder) -> SystemDescription:
        set_names = folder.sets()
        if not set_names:
            raise DataError("the system has no set.* folder", where=folder.path, remedy="add set.000 with coord.npy")
        members = [folder.members(name) for name in set_names]
        mixed = _agree(folder, set_names, members, REAL_TYPES)
        table = self._types.of(folder, mixed)
        free = folder.contains("nopbc")
        periodic = not free and _agree(folder, set_names, members, BOX)
        arrays = [COORD, *([BOX] if periodic else []), *([REAL_TYPES] if mixed else [])]
        arrays += [array for array in self._wanted if _agree(folder, set_names, members, array)]
        sets = [
            self._describe_set(folder, name, present, table.types, arrays)
            for name, present in zip(set_names, members, strict=True)
        ]
        if all(item.n_frames == 0 for item in sets):
            raise DataError("the system has no frames", where=folder.path, remedy="leave it out, or add frames to it")
        return SystemDescription(folder.path, table, mixed, periodic, not (periodic or free), sets)

    def _describe_set(
        self, folder: Folder, name: str, present: frozenset[str], types: np.ndarray, arrays: Sequence[Array]
    ) -> SetDescription:
        files = [_file_of(array, present, folder, name) for array in arrays]
        headers = [folder.header(name, file) for file in files]
        # The types live as long as this object; a header that was parsed once is that same object again.
        key = (name, id(types), *files, *headers)
        known = self._known.get(key)
        if known is None:
            known = _checked_set(folder, name, types, arrays, files, headers)
            if len(self._known) < _KINDS:
                self._known[key] = known
        return known


def _file_of(array: Array, present: frozenset[str], folder: Folder, name: str) -> str:
    for file in array.files:
        if file in present:
            return file
    raise DataError(f"{array.files[0]} is missing", where=folder.where(name), remedy="add it to the set")


def _agree(folder: Folder, sets: list[str], members: list[frozenset[str]], array: Array) -> bool:
    """Whether the sets have an array; refuses a system in which only some of them do.

    A micro-batch may take frames from several sets of a system, so they must all mean the same.
    """
    if len(members) == 1:
        return not members[0].isdisjoint(array.files)
    having = [not present.isdisjoint(array.files) for present in members]
    if all(having) or not any(having):
        return having[0]
    lacking, other = sets[having.index(False)], sets[having.index(True)]
    raise DataError(
        f"{array.files[0]} is missing here, while {other} of the same system has it",
        where=folder.where(lacking),
        remedy="give it to all sets of the system, or make two systems of them",
    )


def _checked_set(
    folder: Folder,
    name: str,
    types: np.ndarray,
    arrays: Sequence[Array],
    files: Sequence[str],
    headers: Sequence[Header],
) -> SetDescription:
    """What a set holds, by its headers, those of the coordinates first."""
    natoms = len(types)
    n_frames = _count_frames(headers[0], natoms)
    layouts: dict[str, ArrayFormat] = {}
    for array, file, header in zip(arrays, files, headers, strict=True):
        chosen = int(np.isin(types, array.selected).sum()) if array.selected else natoms
        problem, layout = _check(header, file, array, natoms, n_frames, chosen)
        if problem:
            raise DataError(problem, where=folder.where(name, file), remedy=_SHAPE_REMEDY)
        layouts[array.name] = layout
    return SetDescription(name, n_frames, layouts)


_SHAPE_REMEDY = "write all files of a set from the same frames and atoms, and check that they hold what they say"


def _count_frames(header: Header, natoms: int) -> int:
    """Frames of a set, by its coordinates; a flat array of 3 * natoms numbers is a single frame."""
    return 1 if header.shape in ((3 * natoms,), ()) else header.shape[0]


def _check(header: Header, file: str, array: Array, natoms: int, n_frames: int, chosen: int) -> tuple[str, ArrayFormat]:
    """What is wrong with an array ("" if nothing), and how to read it; `chosen` of the atoms are selected."""
    tail = header.shape[1:] if header.shape[:1] == (n_frames,) else header.shape
    layout = ArrayFormat(file, header.dtype.str, tail, header.offset, header.fortran)
    width = array.width(natoms)
    size = math.prod(header.shape)
    if array is REAL_TYPES and header.dtype.kind not in "iu":
        return f"types must be integers, but the file holds {header.dtype}", layout
    if size in (n_frames * width, n_frames * array.width(chosen)) and (
        n_frames == 1 or header.shape[:1] == (n_frames,)
    ):
        return "", layout
    if size == n_frames * width and header.shape in ((size,), (1, size)):
        # All frames in one row, as some programs write what they keep flat.
        return "", ArrayFormat(file, header.dtype.str, (width,), header.offset, False)
    if header.shape and header.shape[0] != n_frames and size == header.shape[0] * width:
        return f"it has {header.shape[0]} frames, but coord.npy of the same set has {n_frames}", layout
    return (
        f"its shape is {header.shape}: expected ({n_frames}, {width}) for {n_frames} frames of the "
        f"{natoms} atoms in type.raw{array.hint}",
        layout,
    )


_MOST_TYPES = 1 << 31


def _integers(raw: bytes, where: str) -> np.ndarray:
    words = _words(raw)
    try:
        numbers = np.array([float(word) for word in words])
        valid = (np.abs(numbers) < _MOST_TYPES).all() and (numbers == np.floor(numbers)).all()
    except ValueError:
        valid = False
    if not valid:
        raise DataError("not a list of type numbers", where=where, remedy="write one integer an atom")
    if not words:
        raise DataError("the system has no atoms", where=where, remedy="write one type number an atom")
    numbers = numbers.astype(np.int64)
    if numbers.min() < 0:
        raise DataError(f"type {numbers.min()} is negative", where=where, remedy="types count from 0")
    return numbers


def _names(raw: bytes, where: str) -> tuple[str, ...]:
    names = tuple(word.decode(errors="replace") for word in _words(raw))
    if not names:
        raise DataError("the file names no element", where=where, remedy="write one name a type, or delete the file")
    if len(set(names)) != len(names):
        raise DataError(f"a name occurs twice in {list(names)}", where=where, remedy="name every type once")
    return names


def _words(raw: bytes) -> list[bytes]:
    if b"#" in raw:
        raw = b"\n".join(line.partition(b"#")[0] for line in raw.splitlines())
    return raw.split()


def _whose(names_raw: bytes | None) -> str:
    return "type_map.raw" if names_raw is not None else "the model's type_map (the system has no type_map.raw)"
