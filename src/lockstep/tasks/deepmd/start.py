"""From an input whose model is DeePMD-kit's to a task: checked, built, given its constants."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.config import AnyInput, ForeignInput
from lockstep.config.foreign import ForeignOptimizer, ForeignTrainingConfig
from lockstep.data import Array, JointDataSet
from lockstep.interop.kit import package
from lockstep.interop.kit.files import ONLY
from lockstep.tasks.deepmd.batch import merged_arrays
from lockstep.tasks.deepmd.branches import Branch, Models, build_branches, note_definition
from lockstep.tasks.deepmd.naming import title
from lockstep.tasks.deepmd.sections import Sections, settle
from lockstep.tasks.deepmd.statistics import (
    a_few_atoms,
    compute_statistics,
    note_distance,
    refuse_uncounted,
    sampled_frames,
    sampler,
    settle_slots,
)
from lockstep.tasks.deepmd.weights import fine_tune, read_pretrained, take_over
from lockstep.tasks.task import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What a task is made of.

    Attributes:
        config: the input, with neighbours counted.
        title: what trains, for the log.
        branches: the models and losses by name.
        module: all their weights and constants.
    """

    config: ForeignInput
    title: str
    branches: dict[str, Branch]
    module: Models


def wanted_arrays(config: AnyInput) -> tuple[Array, ...]:
    """Labels of the loss and parameters of the model; both say so themselves, so they are built for asking."""
    sections = checked_sections(config)
    branches = build_branches(_with_some_slots(sections), config.learning_rate.start_lr)
    return merged_arrays(branches.values())


def make_start(job: Job) -> Start:
    """The models to train, their constants and weights in place."""
    assert isinstance(job.config, ForeignInput)
    sections = checked_sections(job.config)
    version = package.require(*_foreign_part(job.config, sections.model_section()))
    name = f"DeePMD-kit {version}'s {title(sections.model_section())}"
    log.info("model: %s", name)
    with job.group.progress.allow(math.inf):
        sections, distances = _settled(sections, job)
        branches = build_branches(sections, job.start_lr)
        module = Models(branches)
        _set_constants(branches, module, sections, job)
        sections = _noted(sections, branches, job)
    for branch in branches.values():
        note_distance(branch, distances[branch.name])
    config = job.config.model_copy(update={"model": sections.model_section()})
    return Start(config, name, branches, module)


def _foreign_part(config: ForeignInput, model: Mapping[str, Any]) -> tuple[str, str]:
    """What needs DeePMD-kit, and where the input says so."""
    if isinstance(config.optimizer, ForeignOptimizer):
        return f"with the optimizer {config.optimizer.type}, {title(model)}", "optimizer.type"
    return title(model), "model"


def checked_sections(config: AnyInput) -> Sections:
    """The model and its loss as DeePMD-kit understands them; stops where there is no DeePMD-kit."""
    assert isinstance(config, ForeignInput)
    package.require(*_foreign_part(config, config.model))
    return settle(config.model, config.loss, config.loss_dict)


def _with_some_slots(sections: Sections) -> Sections:
    """The sections with numbers where neighbours are still to be counted, of the right form if not the right size."""
    models = {
        name: settle_slots(params, a_few_atoms(len(params["type_map"])), "model")[0]
        for name, params in sections.models.items()
    }
    return Sections(models, sections.losses, sections.links)


def _settled(sections: Sections, job: Job) -> tuple[Sections, dict[str, float | None]]:
    """With neighbours counted, by rank 0 for all; a run that goes on keeps the numbers it has."""
    if job.checkpoint is not None:
        saved = job.checkpoint.info["input"]["model"]
        models = saved["model_dict"] if sections.multi_task else {ONLY: saved}
        return Sections(models, sections.losses, sections.links), dict.fromkeys(models)
    counted: dict[str, tuple[dict[str, Any], float | None]] = {}
    if job.group.rank == 0:
        for name, params in sections.models.items():
            counted[name] = _counted(name, params, job)
    counted = job.group.all_gather_object(counted)[0]
    models = {name: params for name, (params, _) in counted.items()}
    return Sections(models, sections.losses, sections.links), {name: each for name, (_, each) in counted.items()}


def _counted(name: str, params: dict[str, Any], job: Job) -> tuple[dict[str, Any], float | None]:
    if not job.survey_all:
        refuse_uncounted(params)
        return params, None
    frames = sampled_frames(job.training, _systems(job, name), len(params["type_map"]))
    return settle_slots(params, frames, "model")


def _systems(job: Job, name: str) -> range:
    dataset = job.training.dataset
    return dataset.systems_of(name) if isinstance(dataset, JointDataSet) else range(len(dataset))


def _set_constants(branches: Mapping[str, Branch], module: Models, sections: Sections, job: Job) -> None:
    """Statistics of the data, by rank 0: weights and constants of rank 0 are given to all before the first step."""
    new = job.checkpoint is None
    computed = new and job.weights is None
    if new and job.group.rank == 0:
        _begin(branches, sections, job)
    probabilities = {name: float(job.training.probabilities[_systems(job, name)].sum()) for name in branches}
    module.share(sections, probabilities, merge=computed and job.group.rank == 0)


def _begin(branches: Mapping[str, Branch], sections: Sections, job: Job) -> None:
    """Constants and weights of a new run: from the data, from another model, or from both."""
    if job.weights is None or job.finetune:
        for name, branch in branches.items():
            compute_statistics(branch, job.training, _systems(job, name), *_stat_file(job, name))
    if job.weights is None:
        return
    pretrained = read_pretrained(job.weights)
    if not job.finetune:
        take_over(branches, pretrained)
        return
    samplers = {name: sampler(branch, job.training, _systems(job, name)) for name, branch in branches.items()}
    fine_tune(branches, sections, pretrained, job.head, samplers)


def _stat_file(job: Job, name: str) -> tuple[str | None, str]:
    training = job.config.training
    assert isinstance(training, ForeignTrainingConfig)
    section = training.data_dict[name] if training.data_dict else training
    return section.stat_file, section.stat_file_mode


def _noted(sections: Sections, branches: Mapping[str, Branch], job: Job) -> Sections:
    """What the statistics found about types, which the model carries along; the same on all ranks."""
    models = {}
    for name, branch in branches.items():
        params = {**branch.params}
        observed = getattr(getattr(branch.model, "atomic_model", None), "observed_type", None)
        if observed is not None:
            params["info"] = {**params.get("info", {}), "observed_type": list(observed)}
        models[name] = params
    models = job.group.all_gather_object(models)[0]
    for name, branch in branches.items():
        note_definition(branch, models[name])
    return Sections(models, sections.losses, sections.links)
