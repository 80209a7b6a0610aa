"""The look at the data before training: how many neighbours atoms have, and what the model's constants should be.

Energies, compositions and frame parameters are taken from all frames (`light`), what needs neighbours from as many
as there is patience for (`sampling`). Both are shared out among the ranks, and the neighbour pairs found on the way
stay in the cache for training.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.config import ModelConfig
from lockstep.data import MicroBatch, Plan, worker_count
from lockstep.errors import InputError
from lockstep.geometry import Cutoff, PairCache, Pairs, find_pairs
from lockstep.model import Potential
from lockstep.model.statistics import EnergySums, ParameterSums, RowSums
from lockstep.parallel.group import Group
from lockstep.tasks.energy.light import LightSums, light_count, look_lightly
from lockstep.tasks.energy.sampling import (
    Chunk,
    Holders,
    chunks,
    counted_frames,
    row_frames,
    uniform_holders,
)

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30


@dataclass
class Survey:
    """What the pass has found; every part can be added up over ranks.

    Attributes:
        max_count: [ntypes] the most neighbours of each type that any atom has; -1 before any atom was looked at.
        min_distance: the shortest distance between two atoms in Angstrom.
        rows, energy, parameters: sums over frames.
    """

    max_count: NDArray[np.int64]
    min_distance: float
    rows: RowSums
    energy: EnergySums
    parameters: ParameterSums

    @classmethod
    def empty(cls, config: ModelConfig) -> Survey:
        ntypes, fitting = len(config.type_map), config.fitting_net
        return cls(
            np.full(ntypes, -1, dtype=np.int64),
            np.inf,
            RowSums.zero(ntypes),
            EnergySums.zero(ntypes),
            ParameterSums.zero(fitting.numb_fparam, fitting.numb_aparam),
        )

    def look_at(self, pairs: Pairs) -> None:
        """Take note of a frame's neighbours."""
        if len(pairs.occupied):
            self.max_count = np.maximum(self.max_count, pairs.occupied.max(axis=0))
        if len(pairs.vector):
            self.min_distance = min(self.min_distance, float(np.linalg.norm(pairs.vector, axis=1).min()))

    def sample(self, batch: MicroBatch, frame: int, pairs: Pairs, cutoff: Cutoff) -> None:
        """Let what needs the atoms of a frame take part in the statistics."""
        self.rows.add(pairs, batch.types[frame], cutoff)
        aparam = batch.labels.get("aparam")
        self.parameters.add(None, None if aparam is None else aparam[frame][batch.types[frame] >= 0])

    def sample_lightly(self, sums: LightSums) -> None:
        """Let all else take part."""
        self.energy.gram += sums.energy.gram
        self.energy.moment += sums.energy.moment
        self.parameters.sums += sums.parameters.sums

    def sums(self) -> list[NDArray[np.float64]]:
        return [self.rows.sums, self.energy.gram, self.energy.moment, self.parameters.sums]

    def combine(self, group: Group) -> None:
        """Add up what all ranks have found."""
        flat = torch.from_numpy(np.concatenate([part.ravel() for part in self.sums()]))
        group.all_reduce(flat)
        at = 0
        for part in self.sums():
            part[...] = flat[at : at + part.size].numpy().reshape(part.shape)
            at += part.size
        extremes = group.all_gather_object((self.max_count.tolist(), self.min_distance))
        self.max_count = np.max([counts for counts, _ in extremes], axis=0)
        self.min_distance = min(distance for _, distance in extremes)


def run_survey(
    plan: Plan, config: ModelConfig, cache: PairCache, group: Group, *, all_frames: bool, workers: int | None = None
) -> Survey:
    """Look at the data, this rank at its share; unless `all_frames`, neighbours only for the statistics."""
    survey = Survey.empty(config)
    holders = _look_lightly(survey, plan, config, group, workers)
    rows = row_frames(plan, config.data_stat_nbatch, holders)
    counted = counted_frames(plan, rows) if all_frames else rows
    _report(plan, config.data_stat_nbatch, rows, counted, all_frames)
    _look_closely(survey, plan, config, cache, chunks(plan.dataset, counted, rows)[group.rank :: group.size], workers)
    survey.combine(group)
    return survey


def _look_lightly(survey: Survey, plan: Plan, config: ModelConfig, group: Group, workers: int | None) -> Holders:
    """Energies, compositions and frame parameters; for each type, some frames with such atoms."""
    total = LightSums.of(iter(()), config)
    take = partial(LightSums.of, config=config)
    for sums in look_lightly(plan.dataset, take, group.rank, group.size, workers):
        survey.sample_lightly(sums)
        for kind, frames in sums.holders.items():
            total.note(kind, frames, config.data_stat_nbatch)
    for holders in group.all_gather_object(total.holders) if plan.dataset.mixed.any() else []:
        for kind, frames in holders.items():
            total.note(kind, frames, config.data_stat_nbatch)
    alike = uniform_holders(plan, config.data_stat_nbatch)
    return {kind: np.concatenate([*_some(total.holders, kind), *_some(alike, kind)]) for kind in total.holders | alike}


def _some(holders: Holders, kind: int) -> list[NDArray[np.int64]]:
    return [holders[kind]] if kind in holders else []


def _look_closely(
    survey: Survey,
    plan: Plan,
    config: ModelConfig,
    cache: PairCache,
    share: Sequence[Chunk],
    workers: int | None,
) -> None:
    """Find the neighbours of frames, count them, and let those chosen take part in the statistics."""
    cutoff = unlimited_cutoff(config)

    def look(chunk: Chunk) -> tuple[MicroBatch, list[Pairs]]:
        batch = plan.dataset.read(chunk.system, chunk.frames)
        return batch, [cached_pairs(cache, batch, frame, cutoff) for frame in range(len(chunk.frames))]

    with ThreadPoolExecutor(max(1, worker_count() if workers is None else workers)) as pool:
        for chunk, (batch, found) in zip(share, pool.map(look, share), strict=True):
            for frame, pairs in enumerate(found):
                survey.look_at(pairs)
                if chunk.sampled[frame]:
                    survey.sample(batch, frame, pairs, cutoff)


def _report(plan: Plan, nbatch: int, rows: NDArray, counted: NDArray, all_frames: bool) -> None:
    """Say what the statistics are taken from, and what was left out."""
    data = plan.dataset
    total = data.total_frames
    log.info(
        "statistics: energies and compositions of %s, environments of %s (data_stat_nbatch = %d)",
        _of(light_count(data), total),
        _of(len(rows), total),
        nbatch,
    )
    if all_frames and len(counted) < total:
        log.info("neighbours are counted in %d of %d frames (all of them: dp neighbor-stat)", len(counted), total)


def _of(count: int, total: int) -> str:
    return f"all {total} frames" if count == total else f"{count} of {total} frames"


def cached_pairs(cache: PairCache, batch: MicroBatch, frame: int, cutoff: Cutoff) -> Pairs:
    """The pairs of one frame of a micro-batch, from the cache if it has them."""
    cell = None if batch.cell is None else batch.cell[frame]
    return cache.get(int(batch.frames[frame]), lambda: find_pairs(batch.coord[frame], cell, batch.types[frame], cutoff))


def unlimited_cutoff(config: ModelConfig) -> Cutoff:
    """The model's cutoff with a slot for every neighbour, for counting them."""
    descriptor = config.descriptor
    return Cutoff(
        rcut=descriptor.rcut,
        rcut_smth=descriptor.rcut_smth,
        sel=(UNLIMITED,) * len(config.type_map),
        exclude=frozenset((a, b) for a, b in descriptor.exclude_types),
        protection=descriptor.env_protection,
    )


def settle_sel(config: ModelConfig, max_count: NDArray, counted: bool) -> ModelConfig:
    """Replace `sel: auto` by numbers: the most neighbours found times the factor, rounded up to a multiple of four."""
    sel = config.descriptor.sel
    if not isinstance(sel, str):
        return config
    if not counted:
        raise InputError(
            "counting neighbours was skipped, so there is nothing to take the numbers from",
            where="model.descriptor.sel",
            value=sel,
            remedy="leave out --skip-neighbor-stat, or give one number per type",
        )
    factor = float(sel.partition(":")[2] or 1.1)
    settled = tuple(max(4, -(-int(np.ceil(count * factor)) // 4) * 4) for count in max_count)
    log.info("model.descriptor.sel = %s: %s", sel, list(settled))
    return config.model_copy(update={"descriptor": config.descriptor.model_copy(update={"sel": settled})})


def warn_about_sel(config: ModelConfig, survey: Survey) -> bool:
    """Tell the user where `sel` is too small; true when it is."""
    sel = config.descriptor.sel
    short = [
        f"{name} ({have} slots, {need} neighbours)"
        for name, have, need in zip(config.type_map, sel, survey.max_count, strict=True)
        if isinstance(have, int) and need > have
    ]
    if short:
        log.warning(
            "model.descriptor.sel = %s is too small for %s: only the nearest neighbours are kept, and energies jump"
            " when they change. Raise sel, or set it to 'auto'.",
            list(sel),
            ", ".join(short),
        )
    return bool(short)


def apply_statistics(potential: Potential, survey: Survey) -> None:
    """Set a new potential's constants from the data."""
    config = potential.config
    potential.scale = survey.rows.scale(sum(potential.cutoff.sel), config.descriptor.set_davg_zero)
    bias = survey.energy.bias(config.fitting_net.atom_ener, config.fitting_net.rcond)
    potential.network.bias.copy_(torch.from_numpy(bias))
    mean, scale = survey.parameters.scale(config.data_stat_protect)
    potential.network.fitting.parameter_mean.copy_(torch.from_numpy(mean))
    potential.network.fitting.parameter_scale.copy_(torch.from_numpy(scale))
