"""Where the potential comes from: a checkpoint, another model's weights, or the statistics of the data."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from lockstep.config import Input, ModelConfig
from lockstep.errors import UserError
from lockstep.geometry import PairCache
from lockstep.geometry.radial import radial_at
from lockstep.interop.descriptors import misread_elsewhere
from lockstep.interop.loading import load_potential, model_config_of, potential_of, refuse_other_model
from lockstep.model import Potential
from lockstep.model.weights import load_weights
from lockstep.tasks.energy.statfile import survey_with_file
from lockstep.tasks.energy.survey import Survey, apply_statistics, settle_sel, warn_about_sel
from lockstep.tasks.task import Job

log = logging.getLogger(__name__)

_MARGIN = 1.05
"""How much closer than the closest pair of the data a pair may come before the exact nets are used for its batch."""


@dataclass(frozen=True)
class Start:
    """The potential as the first step finds it.

    Attributes:
        config: the input with `sel` settled to numbers.
        s_max: for each cutoff the largest value of the radial function in the data, with a margin; nan where a
            checkpoint has it.
    """

    config: Input
    potential: Potential
    s_max: tuple[float, ...]


def make_start(job: Job, cache: PairCache) -> Start:
    """The potential to train, its constants and weights in place."""
    assert isinstance(job.config, Input)
    if job.checkpoint is not None:
        refuse_other_model(model_config_of(job.checkpoint), job.config.model, str(job.checkpoint.path))
        config, potential = _adopted(job.config, potential_of(job.checkpoint))
        return Start(config, potential, s_max=(math.nan,) * len(potential.cutoffs))
    return _from_data(job, job.config, cache)


def _from_data(job: Job, config: Input, cache: PairCache) -> Start:
    with job.group.progress.allow(math.inf):
        survey = survey_with_file(config, job.training, cache, job.group, all_frames=job.survey_all)
    if job.survey_all:
        log.info("training data with min nbor dist: %s", survey.min_distance)
        log.info("training data with max nbor size: %s", survey.most.tolist())
    if job.finetune:
        raise UserError(
            "is for models of DeePMD-kit's, and this one is native", where="--finetune", remedy="use --init-model"
        )
    if job.weights:
        log.info("Initial weights are taken from %s", job.weights)
        found = load_potential(job.weights)
        refuse_other_model(found.config, config.model, job.weights)
        config, potential = _adopted(config, found)
    else:
        model = settle_sel(config.model, survey.max_count, counted=job.survey_all)
        config = config.model_copy(update={"model": model})
        potential = Potential(model)
        apply_statistics(potential, survey)
    _warn_of_exchange(config.model)
    if warn_about_sel(config.model, survey):
        # The pairs were found with a slot for everyone.
        cache.clear()
    return Start(config, potential, _largest_radials(potential, survey))


def _warn_of_exchange(model: ModelConfig) -> None:
    misread = misread_elsewhere(model.descriptor, len(model.type_map))
    if misread:
        log.warning(
            "model.descriptor: %s. Set type_one_side: true if the model is to run there, in LAMMPS say.", misread
        )


def _adopted(config: Input, found: Potential) -> tuple[Input, Potential]:
    """A potential with the weights of `found`, trained as the input file says (seed, trainable)."""
    descriptor = config.model.descriptor.with_sel([part.sel for part in found.config.descriptor.parts()])
    model = config.model.model_copy(update={"descriptor": descriptor})
    potential = Potential(model)
    load_weights(potential, found.state_dict(), "the initial model")
    return config.model_copy(update={"model": model}), potential


def _largest_radials(potential: Potential, survey: Survey) -> tuple[float, ...]:
    return tuple(_MARGIN * radial_at(min(survey.min_distance, cutoff.rcut / 2), cutoff) for cutoff in potential.cutoffs)
