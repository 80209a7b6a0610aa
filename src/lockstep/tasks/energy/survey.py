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
from lockstep.config.descriptors import Sel
from lockstep.data import MicroBatch, Plan, worker_count
from lockstep.errors import InputError
from lockstep.geometry import Cutoff, PairCache, Pairs, batch_pairs
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


@dataclass
class Survey:
    """What the pass has found; every part can be added up over ranks.

    Attributes:
        max_count: [cutoffs, ntypes + 1] the most neighbours of each type, and of all types together, that any atom has
            within a cutoff; -1 before any atom was looked at.
        min_distance: the shortest distance between two atoms in Angstrom.
        rows: for each cutoff, sums over frames.
        energy, parameters: sums over frames.
    """

    max_count: NDArray[np.int64]
    min_distance: float
    rows: list[RowSums]
    energy: EnergySums
    parameters: ParameterSums

    @classmethod
    def empty(cls, config: ModelConfig) -> Survey:
        ntypes, fitting = len(config.type_map), config.fitting_net
        n_cutoffs = len(config.descriptor.parts())
        return cls(
            np.full((n_cutoffs, ntypes + 1), -1, dtype=np.int64),
            np.inf,
            [RowSums.zero(ntypes) for _ in range(n_cutoffs)],
            EnergySums.zero(ntypes),
            ParameterSums.zero(fitting.numb_fparam, fitting.numb_aparam),
        )

    @property
    def most(self) -> NDArray[np.int64]:
        """[ntypes] the most neighbours of each type within any cutoff."""
        return np.asarray(self.max_count[:, :-1].max(axis=0))

    def look_at(self, found: Sequence[Pairs]) -> None:
        """Take note of a frame's neighbours, cutoff by cutoff."""
        for number, pairs in enumerate(found):
            if len(pairs.occupied):
                most = [*pairs.occupied.max(axis=0), pairs.occupied.sum(axis=1).max()]
                self.max_count[number] = np.maximum(self.max_count[number], most)
            if len(pairs.vector):
                self.min_distance = min(self.min_distance, float(np.linalg.norm(pairs.vector, axis=1).min()))

    def sample(self, batch: MicroBatch, frame: int, found: Sequence[Pairs], cutoffs: Sequence[Cutoff]) -> None:
        """Let what needs the atoms of a frame take part in the statistics."""
        for rows, pairs, cutoff in zip(self.rows, found, cutoffs, strict=True):
            rows.add(pairs, batch.types[frame], cutoff)
        aparam = batch.labels.get("aparam")
        self.parameters.add(None, None if aparam is None else aparam[frame][batch.types[frame] >= 0])

    def sample_lightly(self, sums: LightSums) -> None:
        """Let all else take part."""
        self.energy.gram += sums.energy.gram
        self.energy.moment += sums.energy.moment
        self.parameters.sums += sums.parameters.sums

    def sums(self) -> list[NDArray[np.float64]]:
        return [*(rows.sums for rows in self.rows), self.energy.gram, self.energy.moment, self.parameters.sums]

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
    cutoffs = [cutoff.unlimited() for cutoff in config.descriptor.cutoffs(len(config.type_map))]

    def look(chunk: Chunk) -> tuple[MicroBatch, list[list[Pairs]]]:
        batch = plan.dataset.read(chunk.system, chunk.frames)
        frames = range(len(chunk.frames))
        return batch, [[cached_pairs(cache, batch, frame, cutoff) for cutoff in cutoffs] for frame in frames]

    with ThreadPoolExecutor(max(1, worker_count() if workers is None else workers)) as pool:
        for chunk, (batch, found) in zip(share, pool.map(look, share), strict=True):
            for frame, pairs in enumerate(found):
                survey.look_at(pairs)
                if chunk.sampled[frame]:
                    survey.sample(batch, frame, pairs, cutoffs)


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


def cached_pairs(
    cache: PairCache, batch: MicroBatch, frame: int, cutoff: Cutoff, own: NDArray[np.bool_] | None = None
) -> Pairs:
    """The pairs of one frame of a micro-batch, from the cache if it has them; those of `own` atoms, if given.

    Pairs that were found with a slot for everyone will do as long as nobody has more neighbours than slots.
    """
    number = int(batch.frames[frame])
    if own is not None:
        # Which atoms are own ones depends on how many frames share the work on nets.
        return cache.get((number, cutoff.key, "own", len(batch.frames)), lambda: batch_pairs(batch, frame, cutoff, own))
    known = cache.known((number, cutoff.unlimited().key))
    if known is not None and known.fit(cutoff):
        return known
    return cache.get((number, cutoff.key), lambda: batch_pairs(batch, frame, cutoff))


def settle_sel(config: ModelConfig, max_count: NDArray, counted: bool) -> ModelConfig:
    """Replace `sel: auto` by numbers, for each of the descriptor's cutoffs."""
    parts, settled = config.descriptor.parts(), []
    for part, most in zip(parts, max_count, strict=True):
        settled.append(part.sel)
        if not isinstance(part.sel, str):
            continue
        if not counted:
            raise InputError(
                "counting neighbours was skipped, so there is nothing to take the numbers from",
                where="model.descriptor.sel",
                value=part.sel,
                remedy="leave out --skip-neighbor-stat, or give one number per type",
            )
        settled[-1] = part.settled(most.tolist())
        log.info("model.descriptor.sel = %s: %s", part.sel, _in_words(settled[-1]))
    return config.model_copy(update={"descriptor": config.descriptor.with_sel(settled)})


def warn_about_sel(config: ModelConfig, survey: Survey) -> bool:
    """Tell the user where `sel` is too small; true when it is."""
    too_small = False
    for part, most in zip(config.descriptor.parts(), survey.max_count, strict=True):
        short = part.shortages(config.type_map, most.tolist())
        if short:
            too_small = True
            log.warning(
                "model.descriptor.sel = %s is too small for %s: only the nearest neighbours are kept, and energies jump"
                " when they change. Raise sel, or set it to 'auto'.",
                _in_words(part.sel),
                ", ".join(short),
            )
    return too_small


def _in_words(sel: Sel) -> Sel | list[int]:
    """As it is written in an input file."""
    return list(sel) if isinstance(sel, tuple) else sel


def apply_statistics(potential: Potential, survey: Survey) -> None:
    """Set a new potential's constants from the data."""
    config = potential.config
    parts = zip(survey.rows, potential.cutoffs, config.descriptor.parts(), strict=True)
    potential.scales = [rows.scale(cutoff.n_slots, part.set_davg_zero) for rows, cutoff, part in parts]
    bias = survey.energy.bias(config.fitting_net.atom_ener, config.fitting_net.rcond)
    potential.network.bias.copy_(torch.from_numpy(bias))
    mean, scale = survey.parameters.scale(config.data_stat_protect)
    potential.network.fitting.parameter_mean.copy_(torch.from_numpy(mean))
    potential.network.fitting.parameter_scale.copy_(torch.from_numpy(scale))
