"""Evaluating any number of frames in memory for a few: read ahead by a thread, in batches of bounded size."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.data import DataSet, MicroBatch, requiring
from lockstep.device import visible_gpus
from lockstep.errors import UserError
from lockstep.geometry import Cutoff, Environment, Pairs, batch_pairs
from lockstep.model import Potential
from lockstep.tasks.energy.arrays import energy_arrays

log = logging.getLogger(__name__)

_BATCH_ATOMS = 1024
_AHEAD = 2
_LIMIT = "DP_INFER_BATCH_SIZE"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer:
    """What one potential says about the frames of a batch: a `Prediction` in numpy."""

    energy: NDArray
    atom_energy: NDArray
    force: NDArray
    virial: NDArray


class Evaluator:
    """Asks one or more potentials about frames of a data set.

    Args:
        potentials: those to ask, on their devices. Neighbours are found once for those with the same cutoff.
        batch_atoms: atoms evaluated at once; a frame is not split for it, but by itself when it is very large.
    """

    def __init__(self, potentials: Sequence[Potential], batch_atoms: int | None = None) -> None:
        self._potentials = potentials
        self._builders = [potential.environment_builder() for potential in potentials]
        self._batch_atoms = batch_atoms or batch_atoms_from(os.environ)
        self._warned = False

    def run(
        self, dataset: DataSet, system: int, frames: Sequence[int] | NDArray
    ) -> Iterator[tuple[MicroBatch, list[Answer]]]:
        """The frames in order, some at a time, each batch with the answers of all potentials."""
        per_batch = max(1, self._batch_atoms // int(dataset.natoms[system]))
        parts = [frames[start : start + per_batch] for start in range(0, len(frames), per_batch)]

        def prepare(part: Sequence[int] | NDArray) -> tuple[MicroBatch, list[Seen]]:
            batch = dataset.read(system, part)
            return batch, self._look_at(batch)

        for batch, seen in ahead(prepare, parts):
            self._warn(seen, dataset.name(system))
            yield (
                batch,
                [_ask(potential, each.slices, batch) for potential, each in zip(self._potentials, seen, strict=True)],
            )

    def _look_at(self, batch: MicroBatch) -> list[Seen]:
        known: dict[Cutoff, list[Pairs]] = {}
        for potential in self._potentials:
            for cutoff in potential.cutoffs:
                if cutoff not in known:
                    known[cutoff] = all_pairs(batch, cutoff)
        return [
            Seen.of(builder.slices([known[cutoff] for cutoff in builder.cutoffs], batch.types))
            for builder in self._builders
        ]

    def _warn(self, seen: Sequence[Seen], name: str) -> None:
        dropped = max(each.dropped for each in seen)
        if dropped and not self._warned:
            self._warned = True
            log.warning("sel of the model is too small for %s: %d neighbours of its frames are left out", name, dropped)


@dataclass(frozen=True)
class Seen:
    """A batch as a potential sees it: the first slice of its atoms made ready, the others when they are asked for."""

    slices: Iterator[Environment]
    dropped: int

    @classmethod
    def of(cls, slices: Iterator[Environment]) -> Seen:
        first = next(slices)
        return cls(chain((first,), slices), first.dropped)


def _ask(potential: Potential, slices: Iterator[Environment], batch: MicroBatch) -> Answer:
    said = potential.predict(slices, potential.parameters_in(batch.labels))
    columns = (said.energy, said.atom_energy, said.force, said.virial)
    return Answer(*(column.cpu().numpy() for column in columns))


def all_pairs(batch: MicroBatch, cutoff: Cutoff) -> list[Pairs]:
    """The neighbour pairs of every frame of a batch."""
    return [batch_pairs(batch, frame, cutoff) for frame in range(len(batch.frames))]


def ahead(function: Callable[[Item], Result], items: Iterable[Item], workers: int = 1) -> Iterator[Result]:
    """Results in order, made in threads that run a little ahead of whoever takes them, and no further."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > workers + _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def batch_atoms_from(environ: Mapping[str, str]) -> int:
    """Atoms evaluated at once: DeePMD-kit's variable where it is set."""
    given = environ.get(_LIMIT, "").strip()
    if given and not (given.isdecimal() and int(given)):
        raise UserError("expected a number of atoms", where=f"environment variable {_LIMIT}", value=given)
    return int(given) if given else _BATCH_ATOMS


def open_data(
    systems: str | Sequence[str],
    potential: Potential,
    required: Sequence[str] = (),
    rglob_patterns: Sequence[str] | None = None,
) -> DataSet:
    """The systems, in the types and with the parameters of a potential."""
    arrays = requiring(energy_arrays(potential.config.fitting_net), required)
    return DataSet(systems, potential.type_map, arrays, rglob_patterns=rglob_patterns)


def place_alone() -> str:
    """Settle threads, and the device of a program that runs by itself."""
    from lockstep.parallel.devices import Resources, device_type, place

    gpus = visible_gpus()
    own = Resources(os.uname().nodename, frozenset(os.sched_getaffinity(0)), gpus)
    placement = place([own], 0, device_type(os.environ, len(gpus)), os.environ)
    torch.set_num_threads(placement.intra_threads)
    return placement.device


def real_atoms(batch: MicroBatch) -> NDArray[np.bool_]:
    """[B, n] false for the padding of mixed-type systems."""
    return batch.types >= 0
