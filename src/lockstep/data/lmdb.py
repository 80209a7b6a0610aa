"""Frames in an LMDB environment: a key for each frame, whose value is a msgpack map of arrays.

Frames may differ in their atoms. Those of one source with the same number of atoms are a system here, named
`folder.lmdb#ATOMS`, or `folder.lmdb#SOURCE.ATOMS` where the environment says which source its frames come from. Its
types are those of mixed-type data, each frame's own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from lockstep.data.store import ArrayFormat, Header, refuse_non_numbers
from lockstep.errors import DataError

_METADATA = b"__metadata__"
_SET = "frames"
_NAMES = {
    "coords": "coord",
    "cells": "box",
    "energies": "energy",
    "forces": "force",
    "virials": "virial",
    "atom_types": "real_atom_types",
    "atype": "real_atom_types",
}
_NO_ARRAYS = ("atom_numbs", "atom_names", "orig")
_REMEMBERED = 64
_REPAIR = "write the environment anew, or copy it again"

Frame = Mapping[str, np.ndarray]
"""The arrays of a frame by the names that files of a set would have."""


def is_environment(folder: str) -> bool:
    """Whether a folder is an LMDB environment."""
    return os.path.isfile(os.path.join(folder, "data.mdb"))


def is_lmdb(system: str) -> bool:
    """Whether a found system lies in an LMDB environment: those always carry a `#`."""
    return "#" in system and is_environment(system.partition("#")[0])


def find_groups(folder: str) -> list[str]:
    """Addresses of the systems in an environment, by source, then by number of atoms."""
    return [f"{folder}#{name}" for name in _environment(os.path.realpath(folder)).groups]


class Environment:
    """An environment opened for reading. LMDB allows a process only one for each folder; see `_environment`."""

    def __init__(self, folder: str) -> None:
        lmdb, self._msgpack = _libraries(folder)
        self.folder = folder
        try:
            self._lmdb = lmdb.open(folder, readonly=True, lock=False, readahead=False, max_spare_txns=16)
            with self._lmdb.begin() as transaction:
                raw = transaction.get(_METADATA)
        except lmdb.Error as error:
            raise DataError(f"not a readable LMDB environment ({error})", where=folder, remedy=_REPAIR) from error
        if raw is None:
            raise DataError("the environment has no key __metadata__", where=folder, remedy=_REPAIR)
        self._metadata = self._unpacked(raw, "__metadata__")
        self.type_map: list[str] | None = self._metadata.get("type_map")
        self.groups = self._grouped()

    def frame(self, number: int) -> Frame:
        """The arrays of a frame, by its number in the environment."""
        key = format(number, self._metadata.get("frame_idx_fmt", "012d"))
        with self._lmdb.begin() as transaction:
            raw = transaction.get(key.encode())
        if raw is None:
            raise DataError(f"the environment has no frame {key}", where=self.folder, remedy=_REPAIR)
        found = self._unpacked(raw, key)
        absent = {name[5:] for name, value in found.items() if name.startswith("find_") and not _number(value)}
        return {
            f"{_NAMES.get(name, name)}.npy": _decoded(value)
            for name, value in found.items()
            if name not in _NO_ARRAYS and not name.startswith("find_") and _NAMES.get(name, name) not in absent
        }

    def _unpacked(self, raw: bytes, key: str) -> dict[str, Any]:
        try:
            found = self._msgpack.unpackb(raw, raw=False)
        except (ValueError, self._msgpack.UnpackException) as error:
            raise DataError(f"the value of {key} is no msgpack ({error})", where=self.folder, remedy=_REPAIR) from error
        if not isinstance(found, dict):
            raise DataError(f"the value of {key} is no map", where=self.folder, remedy=_REPAIR)
        return found

    def _grouped(self) -> dict[str, np.ndarray]:
        """Numbers of the frames of each system."""
        count = int(self._metadata.get("nframes", 0))
        if count < 1:
            raise DataError("the environment has no frames", where=self.folder, remedy="leave it out")
        atoms = self._metadata.get("frame_nlocs") or [self._atoms(number) for number in range(count)]
        sources = self._metadata.get("frame_system_ids") or [-1] * count
        pairs = np.array([sources[:count], atoms[:count]], dtype=np.int64).T
        kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
        return {
            f"{natoms}" if source < 0 else f"{source}.{natoms}": np.flatnonzero(kind.reshape(-1) == place)
            for place, (source, natoms) in enumerate(kinds.tolist())
        }

    def _atoms(self, number: int) -> int:
        types = self.frame(number).get("real_atom_types.npy")
        if types is None:
            raise DataError(f"frame {number} has no atom_types", where=self.folder, remedy=_REPAIR)
        return types.size


@cache
def _environment(folder: str) -> Environment:
    """The one environment of a folder, for the life of the process; it costs address space, no memory."""
    return Environment(folder)


def _libraries(folder: str) -> tuple[Any, Any]:
    try:
        import lmdb
        import msgpack
    except ImportError as error:
        raise DataError(
            f"LMDB data need the package {error.name}", where=folder, remedy="pip install 'lockstep-dp[lmdb]'"
        ) from error
    return lmdb, msgpack


def _decoded(value: Any) -> np.ndarray:
    """An array, which is a map of its type, shape and bytes, or a plain number."""
    if not isinstance(value, dict):
        return np.asarray(value)
    parts = {key.decode() if isinstance(key, bytes) else key: part for key, part in value.items()}
    array = np.frombuffer(parts["data"], dtype=np.dtype(parts["type"]))
    return array.reshape(parts.get("shape", array.shape))


def _number(value: Any) -> float:
    return float(_decoded(value).reshape(-1)[0])


class LmdbFolder:
    """A system in an environment; see `store.Folder`. Its arrays are those of its first frame."""

    def __init__(self, address: str) -> None:
        self.path = address
        folder, _, self._group = address.partition("#")
        self._environment = _environment(os.path.realpath(folder))
        if self._group not in self._environment.groups:
            known = ", ".join(self._environment.groups)
            raise DataError(f"the environment has no such frames, but {known}", where=address, remedy=f"name {folder}")
        self._numbers = self._environment.groups[self._group]
        self._first = self._environment.frame(int(self._numbers[0]))

    def sets(self) -> list[str]:
        return [_SET]

    def contains(self, name: str) -> bool:
        if name == "type_map.raw":
            return self._environment.type_map is not None
        cell = self._first.get("box.npy")
        return name == "nopbc" and (cell is None or not cell.any())

    def members(self, set_name: str) -> frozenset[str]:
        return frozenset(self._first)

    def text(self, name: str) -> bytes:
        if name == "type_map.raw":
            return "\n".join(self._environment.type_map or []).encode()
        return b"\n".join([b"0"] * self._first["real_atom_types.npy"].size)

    def header(self, set_name: str, file: str) -> Header:
        array = self._first[file]
        header = Header((len(self._numbers), *array.reshape(-1).shape), array.dtype, 0, False, 0)
        refuse_non_numbers(header, self.where(set_name, file))
        return header

    def where(self, *parts: str) -> str:
        return "/".join((self.path, *parts))


class LmdbFrames:
    """Reads frames of systems in environments, and remembers a few; see `store.FrameReader`."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], Frame] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, system: str, set_name: str, layout: ArrayFormat, n_frames: int, frames: np.ndarray) -> np.ndarray:
        folder, _, group = system.partition("#")
        environment = _environment(os.path.realpath(folder))
        width = int(np.prod(layout.tail))
        rows = np.empty((len(frames), width), dtype=layout.dtype)
        for place, number in enumerate(environment.groups[group][frames].tolist()):
            array = self._frame(environment, number).get(layout.file)
            if array is None or array.size != width:
                found = "is missing" if array is None else f"has {array.size} numbers"
                raise DataError(
                    f"{layout.file.removesuffix('.npy')} {found} in frame {number} of the environment; the first "
                    f"frame of {system} has {width}",
                    where=folder,
                    remedy="write frames with other arrays to an environment of their own",
                )
            rows[place] = array.reshape(-1)
        return rows

    def close(self) -> None:
        with self._lock:
            self._known.clear()

    def _frame(self, environment: Environment, number: int) -> Frame:
        """Several arrays of a frame are asked for one after the other, and decoded together."""
        key = environment.folder, number
        with self._lock:
            frame = self._known.get(key)
        if frame is None:
            frame = environment.frame(number)
            with self._lock:
                self._known[key] = frame
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return frame
