"""Several data sets as one, for runs that train several models: one stream draws from all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.data.dataset import DataSet
from lockstep.data.microbatch import MicroBatch
from lockstep.data.plan import Plan
from lockstep.data.stream import Selection, Stream


class JointDataSet(DataSet):
    """The systems of named parts, numbered one after the other; each part has its own types and arrays."""

    def __init__(self, parts: Mapping[str, DataSet]) -> None:
        self.parts = dict(parts)
        self.type_map = next(iter(parts.values())).type_map
        self.arrays = tuple({array.name: array for part in parts.values() for array in part.arrays}.values())
        members = list(parts.values())
        self.n_frames = np.concatenate([part.n_frames for part in members])
        self.natoms = np.concatenate([part.natoms for part in members])
        self.periodic = np.concatenate([part.periodic for part in members])
        self.mixed = np.concatenate([part.mixed for part in members])
        self.first_frame = np.concatenate([[0], np.cumsum(self.n_frames)[:-1]])
        self._first = np.concatenate([[0], np.cumsum([len(part) for part in members])])

    def __len__(self) -> int:
        return len(self.n_frames)

    @property
    def n_systems(self) -> int:
        return len(self.n_frames)

    def part_of(self, system: int) -> str:
        """The name of the part that a system belongs to."""
        return list(self.parts)[int(np.searchsorted(self._first, system, side="right")) - 1]

    def systems_of(self, part: str) -> range:
        """The numbers of a part's systems."""
        place = list(self.parts).index(part)
        return range(int(self._first[place]), int(self._first[place + 1]))

    def name(self, system: int) -> str:
        part, own = self._own(system)
        return part.name(own)

    def has(self, name: str) -> np.ndarray:
        return np.concatenate([part.has(name) for part in self.parts.values()])

    def present(self, system: int) -> tuple[str, ...]:
        part, own = self._own(system)
        return part.present(own)

    def types(self, system: int) -> np.ndarray | None:
        part, own = self._own(system)
        return part.types(own)

    def read(self, system: int, frames: Sequence[int] | np.ndarray, number: int = -1) -> MicroBatch:
        part, own = self._own(system)
        batch = part.read(own, frames, number)
        # Within its part a frame has another number than among all.
        shift = self.first_frame[system] - part.first_frame[own]
        return replace(batch, system=system, frames=batch.frames + shift)

    def close(self) -> None:
        for part in self.parts.values():
            part.close()

    def _own(self, system: int) -> tuple[DataSet, int]:
        name = self.part_of(system)
        return self.parts[name], system - self.systems_of(name).start


@dataclass(frozen=True)
class JointPlan(Plan):
    """One plan over the data of several parts; `total` is the sum of their weights."""

    parts: Mapping[str, Plan]
    total: float

    def turns(self, seed: int) -> Turns:
        """The parts' own streams, one micro-batch of each in turn."""
        first = np.concatenate([[0], np.cumsum([len(plan.dataset) for plan in self.parts.values()])])
        return Turns([plan.stream(seed) for plan in self.parts.values()], [int(number) for number in first])


def join_plans(plans: Mapping[str, Plan], weights: Mapping[str, float]) -> JointPlan:
    """One plan over the data of all, in which each part is drawn as often as its weight says."""
    total = sum(weights[name] for name in plans)
    return JointPlan(
        JointDataSet({name: plan.dataset for name, plan in plans.items()}),
        np.concatenate([plan.batch_sizes for plan in plans.values()]),
        np.concatenate([plan.counts for plan in plans.values()]),
        np.concatenate([plan.probabilities * (weights[name] / total) for name, plan in plans.items()]),
        dict(plans),
        total,
    )


class Turns:
    """Micro-batches of the parts in turn, so that any few in a row have some of each."""

    def __init__(self, streams: Sequence[Stream], first_systems: Sequence[int]) -> None:
        self._streams, self._first = streams, first_systems

    def at(self, number: int) -> Selection:
        turn, part = divmod(number, len(self._streams))
        system, frames = self._streams[part].at(turn)
        return Selection(self._first[part] + system, frames)
