"""One look at the data before training: how many neighbours atoms have, and what the model's constants should be.

Everything is gathered in a single pass over the frames, shared out among the ranks; the neighbour pairs found on
the way stay in the cache for training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30
_CHUNK_ATOMS = 4096
_PER_FRAME, _PER_ATOM = 0.35e-3, 0.02e-3
"""Seconds that a frame costs, roughly, on one core."""
_PATIENCE = 5.0
"""Seconds after which a look at every frame becomes a look at an even sample of them."""


@dataclass
class Survey:
    """What the pass has found; every part can be added up over ranks.

    Attributes:
        max_count: [ntypes] the most neighbours of each type that any atom has; -1 before any atom was looked at.
        min_distance: the shortest distance between two atoms in Angstrom.
        rows, energy, parameters: sums over the frames chosen for statistics.
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
        """Let a frame of a micro-batch take part in the statistics."""
        self.rows.add(pairs, batch.types[frame], cutoff)
        if "energy" in batch.labels:
            self.energy.add(batch.types[frame], float(batch.labels["energy"][frame]))
        one = slice(frame, frame + 1)
        fparam, aparam = batch.labels.get("fparam"), batch.labels.get("aparam")
        self.parameters.add(None if fparam is None else fparam[one], None if aparam is None else aparam[one])

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
    """Look at every frame (or, unless `all_frames`, at those chosen for statistics only), this rank at its share."""
    cutoff = unlimited_cutoff(config)
    survey = Survey.empty(config)
    chunks = frame_chunks(plan, config.data_stat_nbatch, all_frames=all_frames)
    looked_at = sum(len(chunk.frames) for chunk in chunks)
    if all_frames and looked_at < plan.dataset.total_frames:
        total = plan.dataset.total_frames
        log.info("neighbours are counted in %d of %d frames (all of them: dp neighbor-stat)", looked_at, total)
    chunks = chunks[group.rank :: group.size]

    def look(chunk: Chunk) -> tuple[MicroBatch, list[Pairs]]:
        batch = plan.dataset.read(chunk.system, chunk.frames)
        return batch, [cached_pairs(cache, batch, frame, cutoff) for frame in range(len(chunk.frames))]

    with ThreadPoolExecutor(max(1, worker_count() if workers is None else workers)) as pool:
        for chunk, (batch, found) in zip(chunks, pool.map(look, chunks), strict=True):
            for frame, pairs in enumerate(found):
                survey.look_at(pairs)
                if chunk.sampled[frame]:
                    survey.sample(batch, frame, pairs, cutoff)
    survey.combine(group)
    return survey


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


@dataclass(frozen=True)
class Chunk:
    """Some frames of one system, and which of them take part in the statistics."""

    system: int
    frames: NDArray[np.int64]
    sampled: NDArray[np.bool_]


def frame_chunks(plan: Plan, nbatch: int, *, all_frames: bool) -> list[Chunk]:
    """The frames to look at: all of them, or an even sample where all would take too long."""
    chunks = list(_chunks(plan, nbatch, all_frames))
    seconds = sum(len(c.frames) * (_PER_FRAME + _PER_ATOM * int(plan.dataset.natoms[c.system])) for c in chunks)
    return chunks[:: max(1, math.ceil(seconds / _PATIENCE))]


def _chunks(plan: Plan, nbatch: int, all_frames: bool) -> Iterator[Chunk]:
    for system, (n_frames, natoms, batch_size) in enumerate(
        zip(plan.dataset.n_frames, plan.dataset.natoms, plan.batch_sizes, strict=True)
    ):
        wanted = min(int(n_frames), nbatch * int(batch_size))
        sampled = np.zeros(int(n_frames), dtype=bool)
        # Evenly spaced: trajectories drift, and their beginning is not typical of the whole.
        sampled[np.linspace(0, n_frames - 1, wanted).astype(np.int64)] = True
        frames = np.arange(n_frames) if all_frames else np.flatnonzero(sampled)
        per_chunk = max(1, _CHUNK_ATOMS // int(natoms))
        for start in range(0, len(frames), per_chunk):
            part = frames[start : start + per_chunk]
            yield Chunk(system, part, sampled[part])
