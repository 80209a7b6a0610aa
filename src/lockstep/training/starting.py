"""Where a run begins: at a checkpoint, at another model's weights, or anew from the statistics of the data."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lockstep.checkpoint.store import Checkpoint, load_checkpoint
from lockstep.config import Input
from lockstep.data import Plan
from lockstep.errors import CheckpointError
from lockstep.geometry import PairCache
from lockstep.geometry.radial import radial_terms
from lockstep.interop.loading import load_potential
from lockstep.model import Potential
from lockstep.parallel.group import Group
from lockstep.parallel.launchers import torchrun
from lockstep.tasks.energy.statfile import survey_with_file
from lockstep.tasks.energy.survey import Survey, apply_statistics, settle_sel, unlimited_cutoff, warn_about_sel
from lockstep.training.state import load_weights, model_config_of, potential_of, refuse_other_model

log = logging.getLogger(__name__)

_MARGIN = 1.05
"""How much closer than the closest pair of the data a pair may come before the exact nets are used for its batch."""


@dataclass(frozen=True)
class Options:
    """What the command line says beyond the input file.

    Attributes:
        restart: a checkpoint to go on from, step and all.
        init_model: a checkpoint whose weights a new run begins with.
        init_frz_model: a `.dp` model whose weights a new run begins with.
        skip_neighbor_stat: do not count neighbours in all frames.
        output: where the input with all defaults is written.
        profile: write a communication profile.
        timeline: write a timeline to this file.
    """

    restart: str | None = None
    init_model: str | None = None
    init_frz_model: str | None = None
    skip_neighbor_stat: bool = False
    output: str = "out.json"
    profile: bool = False
    timeline: str | None = None


@dataclass(frozen=True)
class Start:
    """The beginning of a run.

    Attributes:
        config: the input with `sel` settled to numbers.
        potential: the potential as the first step finds it.
        checkpoint: what training goes on from; None for a new run.
        spectral: largest value of the radial function in the data, or the state saved in the checkpoint.
    """

    config: Input
    potential: Potential
    checkpoint: Checkpoint | None
    s_max: float

    @property
    def step(self) -> int:
        return self.checkpoint.step if self.checkpoint else 0

    def saved(self, key: str) -> Any:
        """A part of the checkpoint's JSON; None for a new run."""
        return self.checkpoint.info.get(key) if self.checkpoint else None


def find_restart(config: Input, options: Options, group: Group) -> Checkpoint | None:
    """The checkpoint to go on from: this run's own last one after a launcher's restart, or the one asked for."""
    if group.context.attempt:
        path = group.all_gather_object(_last_of_this_run(config))[0]
        if path is not None:
            log.info("The launcher has started this run again: it goes on from %s", path)
            return load_checkpoint(path)
        log.warning("The launcher has started this run again before its first checkpoint")
    return load_checkpoint(options.restart) if options.restart else None


def _last_of_this_run(config: Input) -> str | None:
    try:
        path = load_checkpoint(checkpoint_prefix(config)).path
    except CheckpointError:
        return None
    assert path is not None
    # A run that failed very early has not yet moved away the files of an earlier one.
    return str(path) if path.stat().st_mtime >= torchrun.started_at() else None


def checkpoint_prefix(config: Input) -> Path:
    """Path and beginning of the name of this run's checkpoints."""
    prefix = Path(config.training.save_ckpt)
    return prefix if config.training.save_dir is None else Path(config.training.save_dir) / prefix.name


def make_start(
    config: Input, plan: Plan, options: Options, group: Group, cache: PairCache, checkpoint: Checkpoint | None
) -> Start:
    """The potential to train, its constants and weights in place."""
    if checkpoint is not None:
        refuse_other_model(model_config_of(checkpoint), config.model, str(checkpoint.path))
        config, potential = _adopted(config, potential_of(checkpoint))
        return Start(config, potential, checkpoint, s_max=math.nan)
    with group.progress.allow(math.inf):
        survey = survey_with_file(config, plan, cache, group, all_frames=not options.skip_neighbor_stat)
    _report(survey, options)
    source = options.init_model or options.init_frz_model
    if source:
        log.info("Initial weights are taken from %s", source)
        found = load_potential(source)
        refuse_other_model(found.config, config.model, source)
        config, potential = _adopted(config, found)
    else:
        model = settle_sel(config.model, survey.max_count, counted=not options.skip_neighbor_stat)
        config = config.model_copy(update={"model": model})
        potential = Potential(model)
        apply_statistics(potential, survey)
    if warn_about_sel(config.model, survey):
        # The pairs were found with a slot for everyone.
        cache.clear()
    return Start(config, potential, None, _MARGIN * _largest_radial(config, survey))


def _adopted(config: Input, found: Potential) -> tuple[Input, Potential]:
    """A potential with the weights of `found`, trained as the input file says (seed, trainable)."""
    descriptor = config.model.descriptor.model_copy(update={"sel": found.cutoff.sel})
    model = config.model.model_copy(update={"descriptor": descriptor})
    potential = Potential(model)
    load_weights(potential, found.state_dict(), "the initial model")
    return config.model_copy(update={"model": model}), potential


def _report(survey: Survey, options: Options) -> None:
    if not options.skip_neighbor_stat:
        log.info("training data with min nbor dist: %s", survey.min_distance)
        log.info("training data with max nbor size: %s", survey.max_count.tolist())


def _largest_radial(config: Input, survey: Survey) -> float:
    closest = min(survey.min_distance, config.model.descriptor.rcut / 2)
    terms = radial_terms(torch.tensor(closest, dtype=torch.float64), unlimited_cutoff(config.model))
    return float(terms.radial)
