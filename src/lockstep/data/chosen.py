"""A data set without some of its frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lockstep.data.dataset import DataSet
from lockstep.data.microbatch import MicroBatch


class ChosenDataSet(DataSet):
    """The frames `kept` of each system of `source`; systems of which nothing is left are left out."""

    def __init__(self, source: DataSet, kept: Sequence[np.ndarray]) -> None:
        systems = [system for system, frames in enumerate(kept) if len(frames)]
        self._all = source.take(systems)
        self.__dict__.update(self._all.__dict__)
        self._kept = [np.asarray(kept[system], dtype=np.int64) for system in systems]
        self.n_frames = np.array([len(frames) for frames in self._kept], dtype=np.int64)
        self.first_frame = np.concatenate([[0], np.cumsum(self.n_frames)[:-1]])

    def take(self, systems: Sequence[int] | np.ndarray) -> DataSet:
        chosen = set(np.asarray(systems).tolist())
        return ChosenDataSet(
            self._all, [frames if at in chosen else frames[:0] for at, frames in enumerate(self._kept)]
        )

    def read(self, system: int, frames: Sequence[int] | np.ndarray, number: int = -1) -> MicroBatch:
        frames = self._checked(system, frames)
        batch = self._all.read(system, self._kept[system][frames], number)
        return replace(batch, frames=self.first_frame[system] + frames)

    def values(self, system: int, frames: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
        return self._all.values(system, self._kept[system][np.asarray(frames)], name)

    def frame_types(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        return self._all.frame_types(system, self._kept[system][np.asarray(frames)])

    def compositions(self, system: int, frames: Sequence[int] | np.ndarray) -> np.ndarray:
        return self._all.compositions(system, self._kept[system][np.asarray(frames)])
