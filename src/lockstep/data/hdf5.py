"""Systems as groups of an HDF5 file, named `file.hdf5#/group`: the same members as a folder, as data sets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lockstep.data.store import ArrayFormat, Header, refuse_non_numbers
from lockstep.errors import CONTENT_ERRORS, DataError, UserError, in_one_line

_OPEN_FILES = 8


def split_address(address: str) -> tuple[str, str]:
    """`file.hdf5#/group` -> file and group; the group is the root when none is named."""
    file, _, group = address.partition("#")
    return file, "/" + group.strip("/")


@contextmanager
def _readable(where: str, what: str = "cannot be read") -> Iterator[None]:
    """Whatever the library says within is the file's fault. It says it in many ways."""
    try:
        yield
    except UserError:
        raise
    except (OSError, *CONTENT_ERRORS) as error:
        raise DataError(f"{what} ({in_one_line(error)})", where=where, remedy=_REPAIR) from error


class Hdf5Files:
    """HDF5 files opened for reading, the least recently used closed first; see also `store.FrameReader`.

    The HDF5 library runs one call at a time anyway, so one lock around a whole read costs nothing and
    keeps a file from being closed between finding an array and reading it.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.RLock()

    @contextmanager
    def group(self, address: str) -> Iterator[Any]:
        """The h5py group at an address; valid, and other threads kept out, within the `with` block."""
        path, name = split_address(address)
        with self._lock, _readable(address):
            file = self._file(path)
            group = file.get(name)
            if not hasattr(group, "keys"):
                raise DataError(
                    f"the file has no group {name}",
                    where=path,
                    remedy=f"name one of its groups after the #, for example {sorted(file)[:5]}",
                )
            yield group

    def read(self, system: str, set_name: str, layout: ArrayFormat, n_frames: int, frames: np.ndarray) -> np.ndarray:
        increasing, back = np.unique(frames, return_inverse=True)  # h5py selects in increasing order only
        with self.group(system) as group, _readable(f"{system}/{set_name}/{layout.file}"):
            array = group[set_name][layout.file]
            whole = array.ndim == len(layout.tail) or len(array) != n_frames
            rows = array[()].reshape(n_frames, -1)[increasing] if whole else array[increasing]
        return rows.reshape(len(increasing), -1)[back.reshape(-1)]

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _file(self, path: str) -> Any:
        import h5py

        file = self._open.pop(path, None)
        if file is None:
            with _readable(path, "not a readable HDF5 file"):
                file = h5py.File(path, "r", locking=False)
        self._open[path] = file
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file


_MOST_PACKED = 2000
"""How often the bytes of an array that a compressed data set may have; a thousand times is the most that any has."""
_REPAIR = "check the file with h5ls, or write it anew"


class Hdf5Folder:
    """A system in an HDF5 file; see `store.Folder`."""

    def __init__(self, address: str, files: Hdf5Files) -> None:
        self.path = address
        self._files = files
        with files.group(address) as group:
            self._names = frozenset(group)

    def sets(self) -> list[str]:
        return sorted(name for name in self._names if name.startswith("set."))

    def contains(self, name: str) -> bool:
        return name in self._names

    def members(self, set_name: str) -> frozenset[str]:
        with self._files.group(self.where(set_name)) as group:
            return frozenset(group)

    def text(self, name: str) -> bytes:
        with self._files.group(self.path) as group:
            dataset = _dataset(group, name, self.where(name))
            words = np.atleast_1d(dataset[()]).reshape(-1).tolist()
        return b"\n".join(word if isinstance(word, bytes) else str(word).encode() for word in words)

    def header(self, set_name: str, file: str) -> Header:
        with self._files.group(self.where(set_name)) as group:
            array = _dataset(group, file, self.where(set_name, file))
            header = Header(tuple(array.shape), array.dtype, 0, False, 0)
        refuse_non_numbers(header, self.where(set_name, file))
        return header

    def where(self, *parts: str) -> str:
        return "/".join((self.path.rstrip("/"), *parts))


def _dataset(group: Any, name: str, where: str) -> Any:
    """An array of a group that has all the numbers it says it has."""
    import h5py

    with _readable(where):
        found = group[name]
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise DataError("is not an array", where=where, remedy=_REPAIR)
    stored = found.id.get_storage_size()
    if not found.is_virtual and found.nbytes > _MOST_PACKED * stored:
        reason = f"its shape is {found.shape}, {found.nbytes} bytes, but the file has {stored} of them"
        raise DataError(reason, where=where, remedy=_REPAIR)
    return found


def find_groups(address: str, files: Hdf5Files) -> list[str]:
    """Addresses of all systems in a file, or below a group of it: the groups with a `type.raw`."""
    path, start = split_address(address)
    found: list[str] = []
    with files.group(address) as top:
        pending, seen = [(start, top)], {_identity(top)}
        while pending:
            name, group = pending.pop()
            if "type.raw" in group:
                found.append(f"{path}#{name}")
            for key, member in _groups_in(group):
                # Links may lead back to where they are, and two to the same place.
                if _identity(member) not in seen:
                    seen.add(_identity(member))
                    pending.append((f"{name.rstrip('/')}/{key}", member))
    return sorted(found)


def _groups_in(group: Any) -> Iterator[tuple[str, Any]]:
    for key in group:
        if key.startswith("set.") or key.endswith(".raw"):
            continue
        member = group.get(key)
        if hasattr(member, "keys"):
            yield key, member


def _identity(group: Any) -> Any:
    import h5py

    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr
