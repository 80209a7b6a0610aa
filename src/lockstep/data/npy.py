"""Systems as folders of npy files: headers first, frames by `pread` when they are wanted."""

from __future__ import annotations

import io
import itertools
import math
import os
import threading
from collections import OrderedDict
from functools import lru_cache
from tokenize import TokenError

import numpy as np

from lockstep.data.store import REWRITE, ArrayFormat, Header, refuse_non_numbers
from lockstep.errors import CONTENT_ERRORS, DataError, in_one_line

_FIRST_BYTES = 256  # numpy pads the headers of plain arrays to 128 bytes
_AT_ONCE = 1 << 16
_KEPT_FILES = 1 << 17
_LONGEST_HEADER = 1 << 16
_OPEN_FILES = 128
_FEW = 32


class SmallFiles:
    """Arrays that came whole with their header, so that their numbers need not be read again: some tens of MB at most.

    Of thousands of systems with a few frames each, that spares a second visit to every file of energies.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, bytes] = {}

    def keep(self, path: str, numbers: bytes) -> None:
        if len(self._numbers) < _KEPT_FILES:
            self._numbers[path] = numbers

    def rows(self, path: str, layout: ArrayFormat) -> np.ndarray | None:
        """All frames of an array as [frames, numbers per frame], if it has been kept."""
        numbers = self._numbers.get(path)
        return None if numbers is None else np.frombuffer(numbers, layout.dtype).reshape(-1, math.prod(layout.tail))


class NpyFolder:
    """A deepmd/npy system; see `store.Folder`. What is small goes to `small`, if given."""

    def __init__(self, path: str, small: SmallFiles | None = None) -> None:
        self.path = path
        self._names = frozenset(_list(path))
        self._small = small

    def sets(self) -> list[str]:
        return sorted(name for name in self._names if name.startswith("set."))

    def contains(self, name: str) -> bool:
        return name in self._names

    def members(self, set_name: str) -> frozenset[str]:
        return frozenset(_list(self.where(set_name)))

    def text(self, name: str) -> bytes:
        try:
            descriptor = os.open(self.where(name), os.O_RDONLY)
            try:
                return b"".join(iter(lambda: os.read(descriptor, _AT_ONCE), b""))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unreadable(self.where(name), error) from error

    def header(self, set_name: str, file: str) -> Header:
        path = self.where(set_name, file)
        header, head = read_header(path)
        if self._small is not None and header.end <= len(head) and not header.fortran:
            self._small.keep(path, head[header.offset : header.end])
        return header

    def where(self, *parts: str) -> str:
        return "/".join((self.path, *parts))


def read_header(path: str) -> tuple[Header, bytes]:
    """Header of an npy file and its first bytes; refuses pickled objects and files shorter than the header promises."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            head = os.read(descriptor, _FIRST_BYTES)
            length = _header_length(head, path)
            if length > _LONGEST_HEADER:
                raise DataError("its npy header cannot be read (it is too long)", where=path, remedy=REWRITE)
            if length > len(head):
                head += os.read(descriptor, length - len(head))
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        header = _parse(head[:length])
        if any(length < 0 for length in header.shape):
            raise ValueError(f"shape {header.shape}")
    except (SyntaxError, TokenError, *CONTENT_ERRORS) as error:
        reason = f"its npy header cannot be read ({in_one_line(error)})"
        raise DataError(reason, where=path, remedy=REWRITE) from error
    refuse_non_numbers(header, path)
    if size < header.end:
        raise DataError(
            f"the file is truncated: its header promises an array of shape {header.shape} and type "
            f"{header.dtype}, {header.end} bytes in all, but it has {size}",
            where=path,
            remedy=REWRITE,
        )
    return header, head


def _header_length(head: bytes, path: str) -> int:
    if len(head) < 12 or not head.startswith(b"\x93NUMPY"):
        raise DataError("not an npy file", where=path, remedy=REWRITE)
    if head[6] == 1:
        return 10 + int.from_bytes(head[8:10], "little")
    return 12 + int.from_bytes(head[8:12], "little")


@lru_cache(maxsize=4096)
def _parse(head: bytes) -> Header:
    """Cached because thousands of small systems share a handful of headers."""
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"format version {version[0]}.{version[1]} is not supported")
    return Header(shape, dtype, len(head), bool(fortran), len(head) + math.prod(shape) * dtype.itemsize)


class _OpenFile:
    """A descriptor closed when its last user lets go, so that an eviction never closes it under a read."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class NpyReader:
    """Frames of npy files; see `store.FrameReader`. Keeps a bounded number of files open."""

    def __init__(self, small: SmallFiles) -> None:
        self._small = small
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, system: str, set_name: str, layout: ArrayFormat, n_frames: int, frames: np.ndarray) -> np.ndarray:
        path = f"{system}/{set_name}/{layout.file}"
        kept = self._small.rows(path, layout)
        if kept is not None:
            return kept[frames]
        try:
            if layout.fortran:
                return _read_fortran(path, layout, n_frames, frames)
            return self._read_rows(path, layout, frames)
        except OSError as error:
            raise _unreadable(path, error) from error

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _read_rows(self, path: str, layout: ArrayFormat, frames: np.ndarray) -> np.ndarray:
        width = math.prod(layout.tail)
        rows = np.empty((len(frames), width), dtype=layout.dtype)
        length = width * rows.dtype.itemsize
        view = rows.view(np.uint8).reshape(-1).data  # bytes, because buffers refuse foreign byte orders
        file = self._file(path)
        for position, count in _runs(frames):
            part = view[position * length : (position + count) * length]
            _read_fully(file.descriptor, part, layout.offset + int(frames[position]) * length, path)
        return rows

    def _file(self, path: str) -> _OpenFile:
        with self._lock:
            file = self._open.pop(path, None) or _OpenFile(path)
            self._open[path] = file
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return file


def _runs(frames: np.ndarray) -> list[tuple[int, int]]:
    """(position, number) of the frames that follow one another, so that they are read at once."""
    numbers = frames.tolist() if len(frames) <= _FEW else []
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1 and numbers == sorted(numbers):
        return [(0, len(numbers))]
    starts = [0, *(np.flatnonzero(np.diff(frames) != 1) + 1).tolist(), len(frames)]
    return [(start, end - start) for start, end in itertools.pairwise(starts)]


def _read_fully(descriptor: int, row: memoryview, offset: int, path: str) -> None:
    """`preadv` may return early (at 2 GiB, or on a signal), so it is asked until the row is full."""
    done = 0
    while done < len(row):
        count = os.preadv(descriptor, [row[done:]], offset + done)
        if count == 0:
            raise DataError("the file became shorter while it was in use", where=path, remedy=REWRITE)
        done += count


def _read_fortran(path: str, layout: ArrayFormat, n_frames: int, frames: np.ndarray) -> np.ndarray:
    """Column-major files scatter a frame over the whole file; rare, so a map is good enough."""
    shape = (n_frames, *layout.tail)
    stored = np.memmap(path, dtype=layout.dtype, mode="r", shape=shape, offset=layout.offset, order="F")
    return np.ascontiguousarray(stored[frames]).reshape(len(frames), -1)


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(
        f"cannot be read ({error.strerror or error})",
        where=path,
        remedy="check that it exists and that you may read it",
    )
