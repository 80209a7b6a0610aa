"""Which frames are looked at before training: all where that is quick, an even choice where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.data import DataSet, Plan
from lockstep.data.scramble import scrambled, spread

_CHUNK_ATOMS = 4096
_PER_FRAME, _PER_ATOM, _PER_CHUNK = 1.1e-3, 0.02e-3, 0.6e-3
"""Seconds that a frame with its neighbours costs, roughly, on one core; and to read one or some of a system."""
_PATIENCE = 4.0
"""Seconds after which finding the neighbours of every frame becomes finding those of a choice of frames."""
_LEAST = 0.2
"""Part of the patience that is left for counting neighbours, however many frames the statistics take."""
_PER_SYSTEM, _PER_ENERGY, _PER_TYPE = 0.1e-3, 0.1e-6, 5e-9
"""Seconds for a system, an energy, the type of an atom of a mixed-type system, where nothing else is read."""
_LIGHT_PATIENCE = 20.0
"""The same limit as `_PATIENCE` for energies and compositions: two hundred thousand systems, or a thousand times
as many frames."""
Holders = Mapping[int, NDArray[np.int64]]
"""For each type, some frames (numbers in the whole data set) with such atoms."""


@dataclass(frozen=True)
class Chunk:
    """Some frames of one system, and which of them take part in the statistics."""

    system: int
    frames: NDArray[np.int64]
    sampled: NDArray[np.bool_]


def light_frames(data: DataSet) -> NDArray[np.int64] | None:
    """The frames whose energy and composition are looked at; None stands for all."""
    types = np.where(data.mixed, data.natoms, 0)
    seconds = len(data) * _PER_SYSTEM + float((data.n_frames * (_PER_ENERGY + _PER_TYPE * types)).sum())
    if seconds <= _LIGHT_PATIENCE:
        return None
    chosen = spread(data.total_frames, int(_LIGHT_PATIENCE / _PER_SYSTEM))
    first_of_each = np.unique(data.composition_numbers, return_index=True)[1]
    return np.union1d(chosen, data.first_frame[first_of_each])


def row_frames(plan: Plan, nbatch: int, holders: Holders) -> NDArray[np.int64]:
    """The frames for the statistics of rows: `nbatch` micro-batches of every system, evenly spaced within it.

    Where their neighbours would take too long, it is an even choice of these. Either way every type is in at least
    `nbatch` frames, if there are so many with it.
    """
    data = plan.dataset
    wanted = np.minimum(data.n_frames, nbatch * plan.batch_sizes)
    total = int(wanted.sum())
    positions = spread(total, _affordable(total, float((wanted * _costs(data)).sum()), _PATIENCE))
    ends = np.cumsum(wanted)
    systems = np.searchsorted(ends, positions, side="right")
    place, count = positions - (ends - wanted)[systems], wanted[systems]
    frames = place * (data.n_frames[systems] - 1) // np.maximum(count - 1, 1)
    chosen = data.first_frame[systems] + frames
    return np.union1d(chosen, _missing_share(data, chosen, holders, nbatch))


def _missing_share(data: DataSet, chosen: NDArray[np.int64], holders: Holders, share: int) -> NDArray[np.int64]:
    """Further frames for types that fewer than `share` of the chosen ones have."""
    having = np.zeros(len(data.type_map), dtype=np.int64)
    for system, frames in by_system(data, chosen):
        having += (data.compositions(system, frames) > 0).sum(axis=0)
    more = [found[~np.isin(found, chosen)][: max(0, share - having[kind])] for kind, found in holders.items()]
    return np.concatenate([np.zeros(0, dtype=np.int64), *more])


def uniform_holders(plan: Plan, share: int) -> dict[int, NDArray[np.int64]]:
    """`Holders` from the systems in which all frames have the same atoms: `share` frames, of many systems."""
    data = plan.dataset
    systems = np.flatnonzero(~data.mixed)
    _, first, numbers = np.unique(data.composition_numbers[systems], return_index=True, return_inverse=True)
    present = [data.compositions(int(systems[each]), [0])[0] > 0 for each in first]
    holders = {}
    for kind in range(len(data.type_map)):
        having = systems[np.array([each[kind] for each in present], dtype=bool)[numbers]] if len(systems) else systems
        if len(having):
            chosen = having[spread(len(having), share)]
            each = -(-share // len(chosen))
            holders[kind] = np.concatenate(
                [data.first_frame[system] + spread(int(data.n_frames[system]), each) for system in chosen]
            )
    return holders


def lowest(numbers: NDArray[np.int64], keep: int) -> NDArray[np.int64]:
    """A choice of frame numbers that comes out the same whoever makes it, from parts or from the whole."""
    numbers = np.unique(numbers)
    return numbers[np.argsort(scrambled(numbers), kind="stable")[:keep]]


def counted_frames(plan: Plan, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frames in which neighbours are counted: all, or those for the statistics and an even choice of the others."""
    data = plan.dataset
    costs = _costs(data)
    spent = float(costs[_systems(data, rows)].sum())
    seconds = float((data.n_frames * costs).sum())
    patience = max(_PATIENCE - spent, _LEAST * _PATIENCE)
    chosen = spread(data.total_frames, _affordable(data.total_frames, seconds, patience))
    return np.union1d(chosen, rows)


def checked_frames(plan: Plan) -> NDArray[np.int64]:
    """The frames that are read before training begins: all, or an even choice where that takes too long."""
    return counted_frames(plan, np.zeros(0, dtype=np.int64))


def chunks(data: DataSet, frames: NDArray[np.int64], sampled: NDArray[np.int64]) -> list[Chunk]:
    """Frames (numbers in the whole data set, increasing), some of one system at a time; `sampled` is among them."""
    found, at = [], 0
    chosen = np.isin(frames, sampled, assume_unique=True)
    for system, own in by_system(data, frames):
        size = max(1, _CHUNK_ATOMS // int(data.natoms[system]))
        for start in range(0, len(own), size):
            part = own[start : start + size]
            found.append(Chunk(system, part, chosen[at : at + len(part)]))
            at += len(part)
    return found


def by_system(data: DataSet, frames: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every system that the frames (numbers in the whole data set) touch, with their numbers within it."""
    frames = np.sort(frames)
    systems = _systems(data, frames)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(systems)) + 1, [len(frames)]])
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if end > start:
            system = int(systems[start])
            yield system, frames[start:end] - data.first_frame[system]


def _systems(data: DataSet, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(data.first_frame, frames, side="right") - 1


def _costs(data: DataSet) -> NDArray[np.float64]:
    together = np.minimum(data.n_frames, np.maximum(1, _CHUNK_ATOMS // data.natoms))
    return np.asarray(_PER_FRAME + _PER_ATOM * data.natoms + _PER_CHUNK / together)


def _affordable(frames: int, seconds: float, patience: float) -> int:
    """How many of the frames, which take `seconds` in all, patience allows."""
    return frames if seconds <= patience else max(1, int(frames * patience / seconds))
