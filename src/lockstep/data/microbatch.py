"""Some frames as a task is given them, and where they lie on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lockstep.data.arrays import COORD
from lockstep.data.frames import FrameFiles
from lockstep.errors import DataError


class Origin(Protocol):
    """Where the frames of a micro-batch lie on disk."""

    def refusal(self, frame: int, reason: str, remedy: str) -> DataError:
        """The error of one of the frames."""


@dataclass(frozen=True)
class SystemOrigin:
    """Frames of one system: numbers within it, and the files behind it."""

    files: FrameFiles
    system: int
    frames: np.ndarray

    def refusal(self, frame: int, reason: str, remedy: str) -> DataError:
        number = int(self.frames[frame])
        return DataError(
            f"{reason} in {self.files.name(self.system, number)}",
            where=self.files.where(self.system, number, COORD),
            remedy=remedy,
        )


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
        labels: what there is of the arrays asked for; see `DataSet`.
        filled: names of the labels that the system does not have: defaults stand in for them.
        origin: where the frames lie on disk.
    """

    number: int
    system: int
    frames: np.ndarray
    coord: np.ndarray
    cell: np.ndarray | None
    types: np.ndarray
    labels: dict[str, np.ndarray]
    filled: frozenset[str] = frozenset()
    origin: Origin | None = None

    def refusal(self, frame: int, reason: str, remedy: str) -> DataError:
        """The error of one of the frames, named as the user finds it on disk."""
        if self.origin is None:
            return DataError(f"{reason} in frame {frame} (counted from 0)", remedy=remedy)
        return self.origin.refusal(frame, reason, remedy)
