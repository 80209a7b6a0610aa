"""What a system holds per frame, described: a task says what it wants, and this package finds and reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

ATOMS = -1
"""Stands, in a shape, for the number of atoms of the system."""

Precision = Literal["float64", "float32", "int64"]


@dataclass(frozen=True)
class Array:
    """One per-frame array of a system, as a task wants it, whatever kind of file it lies in.

    Attributes:
        name: its name in a micro-batch.
        files: the names it may have in a set, preferred one first; by default `name` with `.npy`.
        tail: its shape behind [frames], or behind [frames, atoms] where it is atomic; `ATOMS` in it is the number of
            atoms, as in a Hessian: atomic, (3, ATOMS, 3).
        atomic: whether every atom has its own values.
        required: whether every system must have it.
        default: the value that fills it in systems without it; None leaves it out of their micro-batches.
        precision: the type its values have in a micro-batch.
        repeat: how often every value on disk is repeated along the last axis.
        selected: types, in the model's numbers, whose atoms alone may have values on disk; the others' are zero then.
        hint: for the message about a wrong shape, what its size follows from.
    """

    name: str
    files: tuple[str, ...] = ()
    tail: tuple[int, ...] = ()
    atomic: bool = False
    required: bool = False
    default: float | None = None
    precision: Precision = "float64"
    repeat: int = 1
    selected: tuple[int, ...] = ()
    hint: str = ""

    def __post_init__(self) -> None:
        assert self.repeat >= 1
        assert self.default is None or np.isfinite(self.default)
        if not self.files:
            object.__setattr__(self, "files", (f"{self.name}.npy",))

    def shape(self, natoms: int) -> tuple[int, ...]:
        """Shape of one frame on disk, flat or not."""
        tail = tuple(natoms if extent == ATOMS else extent for extent in self.tail)
        return (natoms, *tail) if self.atomic else tail

    def width(self, natoms: int) -> int:
        """Numbers in one frame on disk."""
        width = 1
        for extent in self.shape(natoms):
            width *= extent
        return width

    def spread(self, values: np.ndarray, types: np.ndarray) -> np.ndarray:
        """Frames on disk, [B, numbers], with a place for every atom: where only the selected ones have values."""
        if not self.selected or values.shape[1] == self.width(len(types)):
            return values
        chosen = np.flatnonzero(np.isin(types, self.selected))
        whole = np.zeros((len(values), len(types), values.shape[1] // len(chosen)), dtype=values.dtype)
        whole[:, chosen] = values.reshape(len(values), len(chosen), -1)
        return whole.reshape(len(values), -1)

    def finished(self, values: np.ndarray) -> np.ndarray:
        """Frames in the type and the shape that a micro-batch has them in."""
        values = values.astype(self.precision, copy=False)
        if self.repeat == 1:
            return values
        one_dimensional = values.ndim == (2 if self.atomic else 1)
        return np.repeat(values[..., None] if one_dimensional else values, self.repeat, axis=-1)

    def filled(self, n_frames: int, natoms: int) -> np.ndarray:
        """Frames of a system without the array, which has a default."""
        assert self.default is not None
        return self.finished(np.full((n_frames, *self.shape(natoms)), self.default))


COORD = Array("coord", tail=(3,), atomic=True)
BOX = Array("box", tail=(3, 3))
REAL_TYPES = Array("real_atom_types", atomic=True)


def requiring(arrays: Iterable[Array], names: Iterable[str]) -> tuple[Array, ...]:
    """The same arrays, those named required in every system."""
    wanted = set(names)
    return tuple(replace(array, required=array.required or array.name in wanted) for array in arrays)


def named(arrays: Iterable[Array], names: Iterable[str]) -> tuple[Array, ...]:
    """Those of the arrays that are named."""
    wanted = set(names)
    return tuple(array for array in arrays if array.name in wanted)
