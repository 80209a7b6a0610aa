"""What a system on disk must answer, be it a folder of npy files or a group of an HDF5 file."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from lockstep.errors import DataError

REWRITE = "copy the file again or write it anew with numpy.save"


class Header(NamedTuple):
    """What an array says about itself before any of its numbers is read; `end` is where its last byte must lie."""

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    fortran: bool
    end: int


class ArrayFormat(NamedTuple):
    """How to read the frames of one array of a set; few distinct ones exist in a data set."""

    file: str
    dtype: str
    tail: tuple[int, ...]
    offset: int
    fortran: bool


def refuse_non_numbers(header: Header, where: str) -> None:
    """Only plain numbers are ever read: object arrays are pickles, and pickles are programs."""
    if header.dtype.hasobject:
        raise DataError(
            "the array holds Python objects, which can run code when loaded and are never read",
            where=where,
            remedy="make every frame the same length and save it as a plain float array",
        )
    if header.dtype.kind not in "fiu":
        raise DataError(f"the array is of type {header.dtype}, not of numbers", where=where, remedy=REWRITE)


class Folder(Protocol):
    """A system while it is being opened."""

    path: str

    def sets(self) -> list[str]:
        """Names of the `set.*` members, sorted."""

    def contains(self, name: str) -> bool:
        """Whether the system has a member of that name."""

    def members(self, set_name: str) -> frozenset[str]:
        """Names of the arrays in a set."""

    def text(self, name: str) -> bytes:
        """The words of `type.raw` or `type_map.raw`, separated by white space."""

    def header(self, set_name: str, file: str) -> Header:
        """Shape and type of an array, without reading it."""

    def where(self, *parts: str) -> str:
        """Name of a member for an error message."""


class FrameReader(Protocol):
    """Reads frames of arrays of opened systems; safe to use from several threads."""

    def read(self, system: str, set_name: str, layout: ArrayFormat, n_frames: int, frames: np.ndarray) -> np.ndarray:
        """The given frames of a set as [len(frames), numbers per frame], in the type they have on disk."""

    def close(self) -> None:
        """Give back file handles; reading again is allowed and opens them anew."""
