"""Which ranks share a frame, and which train on frames of their own."""

from __future__ import annotations

import logging

import numpy as np

from lockstep.config import AnyInput
from lockstep.data import Plan
from lockstep.errors import UserError
from lockstep.parallel.group import Group
from lockstep.parallel.mesh import Mesh, divisors
from lockstep.tasks import Task
from lockstep.training.options import Options

log = logging.getLogger(__name__)

WORTH_A_RANK = 512
"""Atoms of a micro-batch that keep a rank busy for long enough, beside what ranks that share have to exchange."""


def divide_ranks(config: AnyInput, plan: Plan, kind: type[Task], options: Options, group: Group) -> Mesh:
    """The mesh that the input file or the command line asks for. All ranks must call it."""
    asked = options.ranks_per_frame
    where = "training.ranks_per_frame" if asked is None else "--ranks-per-frame"
    wanted = config.training.ranks_per_frame if asked is None else asked
    size = wanted if isinstance(wanted, int) else _choose(plan, kind, group.size)
    if size > 1:
        _refuse_unshareable(size, plan, kind, where)
    mesh = Mesh.of(group, size, where)
    if size > 1:
        log.info("each frame is shared by %d ranks; %d frames or batches at a time", size, mesh.data.size)
    return mesh


def _choose(plan: Plan, kind: type[Task], ranks: int) -> int:
    """As many ranks as have enough atoms each, in micro-batches of the usual size."""
    if not kind.shares_frames:
        log.info("ranks_per_frame = auto: 1, because this model cannot be shared by blocks of space")
        return 1
    atoms = float(np.average(plan.dataset.natoms * plan.batch_sizes, weights=plan.probabilities))
    chosen = max(size for size in divisors(ranks) if size == 1 or atoms / size >= WORTH_A_RANK)
    log.info(
        "ranks_per_frame = auto: %d of %d, because a micro-batch has %.0f atoms, and %d are worth a rank",
        chosen,
        ranks,
        atoms,
        WORTH_A_RANK,
    )
    return chosen


def _refuse_unshareable(size: int, plan: Plan, kind: type[Task], where: str) -> None:
    if not kind.shares_frames:
        raise UserError(
            "this model cannot be shared by blocks of space: its atoms may depend on more than their own neighbours",
            where=where,
            value=size,
            remedy="leave it out: the ranks then train on frames of their own",
        )
    largest = int(plan.dataset.natoms.max())
    if size > largest:
        raise UserError(
            f"no frame has as many atoms: the largest has {largest}, and some ranks would never have anything to do",
            where=where,
            value=size,
            remedy="choose a smaller number, or auto",
        )
