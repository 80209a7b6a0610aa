"""The data that an input names, opened: systems found, headers read, and how they are drawn from settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lockstep.config import AnyInput, ForeignInput
from lockstep.config.foreign import BranchConfig, ForeignTrainingConfig
from lockstep.config.training import DataConfig, TrainingDataConfig
from lockstep.data import ChosenDataSet, DataSet, Plan, join_plans, make_plan, summary_lines
from lockstep.errors import InputError
from lockstep.geometry import has_close_atoms
from lockstep.tasks import Task

log = logging.getLogger(__name__)

_CHUNK_ATOMS = 4096


class Data(NamedTuple):
    """The opened data of a run."""

    training: Plan
    validation: Plan | None


def open_data(config: AnyInput, kind: type[Task], folder: Path) -> Data:
    """Open what the input file names; nothing but headers is read."""
    if isinstance(config, ForeignInput) and config.training.data_dict:
        return open_parts(config, config.training.data_dict, kind, folder)
    validation = config.training.validation_data
    return Data(
        open_plan(config, config.training.training_data, "training", folder, kind),
        open_plan(config, validation, "validation", folder, kind) if validation else None,
    )


def open_parts(config: ForeignInput, parts: Mapping[str, BranchConfig], kind: type[Task], folder: Path) -> Data:
    """The data of several models, in one stream that draws from all of them."""
    training = {
        name: open_plan(config.only(name), part.training_data, "training", folder, kind, name)
        for name, part in parts.items()
    }
    validation = {
        name: open_plan(config.only(name), part.validation_data, "validation", folder, kind, name)
        for name, part in parts.items()
        if part.validation_data
    }
    weights = part_weights(config.training, training)
    return Data(join_plans(training, weights), join_plans(validation, weights) if validation else None)


def part_weights(training: ForeignTrainingConfig, plans: Mapping[str, Plan]) -> dict[str, float]:
    """How often each model is trained: as the input says, or by the passes it asks for, or by the size of its data."""
    if training.model_prob:
        return dict(training.model_prob)
    epochs = training.num_epoch_dict or dict.fromkeys(plans, 1.0)
    return {name: epochs[name] * plan.per_epoch for name, plan in plans.items()}


def open_plan(
    config: AnyInput, data: DataConfig, purpose: str, folder: Path, kind: type[Task], part: str | None = None
) -> Plan:
    """Open the systems of a section of the input file and settle how they are drawn from."""
    where = f"training.{purpose}_data" if part is None else f"training.data_dict.{part}.{purpose}_data"
    dataset = DataSet(
        data.systems,
        config.type_map,
        kind.arrays(config),
        rglob_patterns=data.rglob_patterns,
        input_folder=folder,
        option=f"{where}.systems",
    )
    if isinstance(data, TrainingDataConfig) and data.min_pair_dist > 0:
        dataset = without_close_atoms(dataset, data.min_pair_dist, f"{where}.min_pair_dist")
    plan = make_plan(dataset, data.batch_size, data.sys_probs, auto_prob=data.auto_prob, where=where)
    for line in summary_lines(purpose if part is None else f"{purpose} {part}", plan):
        log.info(line)
    return plan


def without_close_atoms(dataset: DataSet, distance: float, where: str) -> DataSet:
    """The frames in which no two atoms are closer than `distance`. All of them are read for this."""
    kept = []
    for system, count in enumerate(dataset.n_frames.tolist()):
        size = max(1, _CHUNK_ATOMS // int(dataset.natoms[system]))
        parts = [np.arange(start, min(start + size, count)) for start in range(0, count, size)]
        close = [has_close_atoms(dataset.read(system, part), distance) for part in parts]
        kept.append(np.flatnonzero(~np.concatenate(close)))
    left = sum(map(len, kept))
    if not left:
        raise InputError("leaves out all frames", where=where, value=distance, remedy="lower it: it is in Angstrom")
    log.info("%s = %g leaves out %d of %d frames", where, distance, dataset.total_frames - left, dataset.total_frames)
    return ChosenDataSet(dataset, kept)
