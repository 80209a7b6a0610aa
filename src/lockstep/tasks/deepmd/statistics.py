"""What DeePMD-kit's models learn from the data before training: slots for neighbours, means, deviations, biases."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from lockstep.data import MicroBatch, Plan
from lockstep.errors import InputError
from lockstep.tasks.deepmd.batch import Translator
from lockstep.tasks.deepmd.branches import Branch
from lockstep.tasks.deepmd.sections import translated

log = logging.getLogger(__name__)

_COUNTED = 60
"""Frames in which neighbours are counted, an even sample of all."""


class CountedFrames:
    """Frames in the form in which DeePMD-kit counts neighbours: one system, one set for each."""

    def __init__(self, batches: list[MicroBatch], ntypes: int) -> None:
        self.data_systems = [_OneSet(batch) for batch in batches]
        self.system_dirs = list(range(len(batches)))
        self._ntypes = ntypes

    def get_batch(self) -> None:
        """Nothing is read ahead."""

    def get_ntypes(self) -> int:
        return self._ntypes


class _OneSet:
    dirs = ("the training data",)

    def __init__(self, batch: MicroBatch) -> None:
        self._batch, self.pbc = batch, batch.cell is not None

    def get_natoms(self) -> int:
        return self._batch.types.shape[1]

    def _load_set(self, _: str) -> dict[str, Any]:
        frames = len(self._batch.types)
        cell = np.zeros((frames, 9)) if self._batch.cell is None else self._batch.cell.reshape(frames, 9)
        return {"coord": self._batch.coord.reshape(frames, -1), "type": self._batch.types, "box": cell}


def a_few_atoms(ntypes: int) -> CountedFrames:
    """Made-up frames, where only the form of the settled numbers matters."""
    types = np.arange(max(2, ntypes), dtype=np.int64)[None] % ntypes
    coord = np.zeros((1, types.shape[1], 3))
    coord[0, :, 0] = np.arange(types.shape[1])
    return CountedFrames([MicroBatch(-1, 0, np.zeros(1, np.int64), coord, None, types, {})], ntypes)


def sampled_frames(plan: Plan, systems: range, ntypes: int) -> CountedFrames:
    """An even sample of the frames of some systems."""
    counts = plan.dataset.n_frames[list(systems)]
    every = max(1, math.ceil(int(counts.sum()) / _COUNTED))
    chosen = [(system, np.arange(0, int(count), every)) for system, count in zip(systems, counts, strict=True)]
    if every > 1:
        looked_at = sum(len(frames) for _, frames in chosen)
        log.info("neighbours are counted in %d of %d frames", looked_at, int(counts.sum()))
    batches = (plan.dataset.read(system, frames) for system, frames in chosen)
    return CountedFrames([part for batch in batches for part in _without_padding(batch)], ntypes)


def _without_padding(batch: MicroBatch) -> Iterator[MicroBatch]:
    """The micro-batch, or where frames are padded each of them with its own atoms."""
    real = batch.types >= 0
    if real.all():
        yield batch
        return
    for frame, own in enumerate(real):
        cell = None if batch.cell is None else batch.cell[frame : frame + 1]
        types, coord = batch.types[frame, own][None], batch.coord[frame, own][None]
        yield replace(batch, frames=batch.frames[frame : frame + 1], coord=coord, cell=cell, types=types, labels={})


def settle_slots(params: dict[str, Any], frames: CountedFrames, where: str) -> tuple[dict[str, Any], float | None]:
    """The `model` section with `sel: auto` replaced by numbers, and the shortest distance between two atoms."""
    from deepmd.pt.model.model import BaseModel

    settled, distance = translated(where, lambda: BaseModel.update_sel(frames, params["type_map"], params))
    return settled, distance


def has_automatic_slots(params: Any) -> bool:
    """Whether a section leaves a number of neighbours to be counted."""
    if isinstance(params, dict):
        return any(
            (key.endswith("sel") and isinstance(value, str)) or has_automatic_slots(value)
            for key, value in params.items()
        )
    return isinstance(params, list) and any(map(has_automatic_slots, params))


def refuse_uncounted(params: dict[str, Any]) -> None:
    """Stop where numbers are to be counted and counting was skipped."""
    if has_automatic_slots(params):
        raise InputError(
            "counting neighbours was skipped, so there is nothing to take the numbers from",
            where="model.descriptor.sel",
            value="auto",
            remedy="leave out --skip-neighbor-stat, or give numbers",
        )


def compute_statistics(branch: Branch, plan: Plan, systems: range, stat_file: str | None, mode: str) -> None:
    """Set a new model's constants from the data, or from the file in which they were kept."""
    from deepmd.utils.stat_file import StatFileSpec, open_stat_file

    with open_stat_file(StatFileSpec(stat_file, mode)) as path:
        branch.model.compute_or_load_stat(  # type: ignore[operator]
            sampled_func=sampler(branch, plan, systems),
            stat_file_path=path,
            preset_observed_type=branch.params.get("info", {}).get("observed_type"),
        )


def sampler(branch: Branch, plan: Plan, systems: range) -> Any:
    """Gives DeePMD-kit frames of every system, when it asks for them."""
    translator = Translator(branch, _device())
    batches = int(branch.params.get("data_stat_nbatch", 10))

    @cache
    def sample() -> list[dict[str, Any]]:
        return [translator.statistics(batch) for batch in _sampled_batches(plan, systems, batches)]

    return sample


def _sampled_batches(plan: Plan, systems: range, batches: int) -> Iterator[MicroBatch]:
    for system in systems:
        count = int(plan.dataset.n_frames[system])
        wanted = min(count, batches * int(plan.batch_sizes[system]))
        # Evenly spaced: trajectories drift, and their beginning is not typical of the whole.
        yield plan.dataset.read(system, np.linspace(0, count - 1, wanted).astype(np.int64))


def _device() -> str:
    from deepmd.pt.utils import env

    return str(env.DEVICE)


def note_distance(branch: Branch, distance: float | None) -> None:
    """Keep the shortest distance with the model, where tables made of it begin."""
    if distance is not None:
        branch.model.min_nbor_dist = torch.tensor(distance, dtype=torch.float64, device=_device())
