"""The light look at the data: energies, compositions and frame parameters of all frames, for which no neighbour counts.

It takes seconds where finding the neighbours of every frame would take hours, so nothing is left out of it
unless the data are truly huge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lockstep.config import ModelConfig
from lockstep.data import DataSet, worker_count
from lockstep.model.statistics import EnergySums, ParameterSums
from lockstep.tasks.energy.sampling import by_system, light_frames, lowest

Result = TypeVar("Result")

_TOGETHER = 64  # systems that a thread takes at once
_CHUNK_NUMBERS = 1 << 21


@dataclass(frozen=True)
class LightFrames:
    """Frames of one system without coordinates.

    Attributes:
        frames: [B] their numbers in the whole data set.
        mixed: whether they have other atoms each.
        counts: [B, ntypes] their atoms of each type; one row where all have the same.
        energy: [B], None where the system has none.
        fparam: [B, numb_fparam], None where the model or the system has none.
    """

    system: int
    frames: NDArray[np.int64]
    mixed: bool
    counts: NDArray[np.int64]
    energy: NDArray[np.float64] | None
    fparam: NDArray[np.float64] | None


@dataclass
class LightSums:
    """Sums over frames without coordinates, and for each type some frames of mixed-type systems with such atoms."""

    energy: EnergySums
    parameters: ParameterSums
    holders: dict[int, NDArray[np.int64]]

    @classmethod
    def of(cls, parts: Iterator[LightFrames], config: ModelConfig) -> LightSums:
        fitting = config.fitting_net
        parameters = ParameterSums.zero(fitting.numb_fparam, fitting.numb_aparam)
        sums = cls(EnergySums.zero(len(config.type_map)), parameters, {})
        alike: dict[bytes, list[LightFrames]] = {}
        for part in parts:
            if part.energy is not None and len(part.counts) == 1:
                alike.setdefault(part.counts.tobytes(), []).append(part)
            elif part.energy is not None:
                sums.energy.add(part.counts, part.energy)
            sums.parameters.add(part.fparam, None)
            if part.mixed:
                for kind in np.flatnonzero(part.counts.any(axis=0)).tolist():
                    sums.note(kind, part.frames[part.counts[:, kind] > 0], config.data_stat_nbatch)
        for same in alike.values():
            energies = [part.energy for part in same if part.energy is not None]
            sums.energy.add(same[0].counts, np.concatenate(energies))
        return sums

    def note(self, kind: int, frames: NDArray[np.int64], share: int) -> None:
        """Keep some of the frames with atoms of a type: `share` of them in all."""
        self.holders[kind] = lowest(np.concatenate([self.holders.get(kind, frames[:0]), frames]), share)


def look_lightly(
    data: DataSet,
    take: Callable[[Iterator[LightFrames]], Result],
    rank: int = 0,
    size: int = 1,
    workers: int | None = None,
) -> Iterator[Result]:
    """What `take` makes of some frames at a time, in their order; this rank's share. `take` runs in threads."""
    parts = _parts(data)
    shares = [parts[start : start + _TOGETHER] for start in range(0, len(parts), _TOGETHER)][rank::size]

    def look(share: Sequence[tuple[int, NDArray[np.int64]]]) -> Result:
        return take(_read(data, system, frames) for system, frames in share)

    with ThreadPoolExecutor(max(1, worker_count() if workers is None else workers)) as pool:
        yield from pool.map(look, shares)


def light_digest(parts: Iterator[LightFrames]) -> bytes:
    """A hash of frames' energies, compositions and parameters."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for values in (part.counts, part.energy, part.fparam):
            if values is not None:
                digest.update(np.ascontiguousarray(values).data)
    return digest.digest()


def light_count(data: DataSet) -> int:
    """How many frames are looked at."""
    frames = light_frames(data)
    return data.total_frames if frames is None else len(frames)


def _parts(data: DataSet) -> list[tuple[int, NDArray[np.int64]]]:
    """(system, frames within it), few enough at a time to keep memory small."""
    chosen = light_frames(data)
    if chosen is not None:
        return list(by_system(data, chosen))
    parts = []
    for system, (count, natoms, mixed) in enumerate(zip(data.n_frames, data.natoms, data.mixed, strict=True)):
        size = max(1, _CHUNK_NUMBERS // (max(int(natoms), len(data.type_map)) if mixed else 1))
        parts += [(system, np.arange(start, min(start + size, count))) for start in range(0, int(count), size)]
    return parts


def _read(data: DataSet, system: int, frames: NDArray[np.int64]) -> LightFrames:
    present = data.present(system)
    return LightFrames(
        system,
        data.first_frame[system] + frames,
        bool(data.mixed[system]),
        data.compositions(system, frames if data.mixed[system] else frames[:1]),
        energy=data.values(system, frames, "energy") if "energy" in present else None,
        fparam=data.values(system, frames, "fparam") if "fparam" in present else None,
    )
