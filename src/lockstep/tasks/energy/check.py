"""Reading data before training begins, so that a run does not fail on them hours later."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from lockstep.data import DataSet, MicroBatch, Plan, worker_count
from lockstep.errors import DataError, InputError
from lockstep.geometry import Cutoff, PairCache
from lockstep.parallel.group import Group
from lockstep.tasks.energy.light import light_digest, look_lightly
from lockstep.tasks.energy.loss import EnergyLoss
from lockstep.tasks.energy.sampling import (
    Chunk,
    checked_frames,
    chunks,
    counted_frames,
    row_frames,
    uniform_holders,
)
from lockstep.tasks.energy.survey import cached_pairs

log = logging.getLogger(__name__)


def check_labels(data: DataSet, loss: EnergyLoss) -> None:
    """Refuse a system that has nothing to train for; tell of terms of the loss that no system has labels for."""
    if not loss.labels:
        raise InputError(
            "no term takes part, because none has both prefactors above zero",
            where="loss",
            remedy="give start_pref_f and limit_pref_f, or those of another term",
        )
    useful = np.zeros(len(data), dtype=bool)
    for term, names in loss.labels.items():
        having = np.logical_and.reduce([data.has(name) for name in names])
        useful |= having
        if not having.any():
            files = " with ".join(f"{name}.npy" for name in names)
            log.warning("loss.start_pref_%s has no effect: no training system has %s", term, files)
    if not useful.all():
        files = " or ".join(sorted({f"{name}.npy" for names in loss.labels.values() for name in names}))
        raise DataError(
            f"the system has no label that the loss asks for: {files}",
            where=data.name(int(np.flatnonzero(~useful)[0])),
            remedy="add the labels to its sets, or leave the system out",
        )


def check_frames(plan: Plan, group: Group, cutoffs: Sequence[Cutoff], cache: PairCache) -> None:
    """Read frames and find their neighbours, this rank its share: a broken one is refused now, not when it is drawn."""
    frames = checked_frames(plan)

    def check(chunk: Chunk) -> None:
        batch = plan.dataset.read(chunk.system, chunk.frames)
        for frame, cutoff in product(range(len(chunk.frames)), cutoffs):
            cached_pairs(cache, batch, frame, cutoff)

    with ThreadPoolExecutor(max(1, worker_count())) as pool:
        for _ in pool.map(check, chunks(plan.dataset, frames, frames)[group.rank :: group.size]):
            pass


def digest_frames(plan: Plan, nbatch: int, *, all_frames: bool) -> str:
    """A hash of the content of all frames that statistics come from: energies, compositions, and coordinates."""
    light = look_lightly(plan.dataset, light_digest)
    rows = row_frames(plan, nbatch, uniform_holders(plan, nbatch))
    frames = counted_frames(plan, rows) if all_frames else rows
    return hashlib.sha256(b"".join([*light, *_digests(plan, chunks(plan.dataset, frames, rows))])).hexdigest()


def _digests(plan: Plan, share: list[Chunk]) -> list[bytes]:
    with ThreadPoolExecutor(max(1, worker_count())) as pool:
        return list(pool.map(lambda chunk: _digest(plan.dataset.read(chunk.system, chunk.frames)), share))


def _digest(batch: MicroBatch) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    cells = [] if batch.cell is None else [batch.cell]
    labels = [value for _, value in sorted(batch.labels.items())]
    for values in (batch.coord, batch.types, *cells, *labels):
        digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
