"""The survey's results kept in `stat_file`, so that the next run over the same data need not look again."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lockstep.config import Input
from lockstep.data import Plan
from lockstep.errors import UserError
from lockstep.files import written_whole
from lockstep.geometry import PairCache
from lockstep.parallel.group import Group
from lockstep.tasks.energy.check import digest_frames
from lockstep.tasks.energy.survey import Survey, run_survey

log = logging.getLogger(__name__)

_METHOD = 2
"""Counts the ways in which statistics have been taken: other ways give other numbers from the same data."""


def survey_with_file(config: Input, plan: Plan, cache: PairCache, group: Group, *, all_frames: bool) -> Survey:
    """The survey of the training data, read from `stat_file` where it is there, made and kept otherwise."""
    training = config.training
    if training.stat_file is None:
        return run_survey(plan, config.model, cache, group, all_frames=all_frames)
    path = stat_path(training.stat_file)
    key = group.all_gather_object(fingerprint(config, plan, all_frames) if group.rank == 0 else "")[0]
    found = _read(path, key, config)
    if found is not None:
        log.info("Statistics of the training data are read from %s", path)
        return found
    if training.stat_file_mode == "read":
        raise UserError(
            "has no statistics of these data and this model",
            where="training.stat_file",
            value=training.stat_file,
            remedy="set training.stat_file_mode to 'update' to have them computed",
        )
    survey = run_survey(plan, config.model, cache, group, all_frames=all_frames)
    if group.rank == 0:
        _write(path, key, survey)
    group.barrier()
    return survey


def stat_path(stat_file: str) -> Path:
    """An HDF5 file, or one inside a folder."""
    path = Path(stat_file)
    return path if path.suffix in (".h5", ".hdf5") else path / "lockstep.hdf5"


def fingerprint(config: Input, plan: Plan, all_frames: bool) -> str:
    """Equal for the same data, wherever they lie, and the same questions about them."""
    data, cutoffs = plan.dataset, config.model.descriptor.cutoffs(len(config.model.type_map))
    questions: dict[str, Any] = {
        "method": _METHOD,
        "type_map": config.model.type_map,
        "nbatch": config.model.data_stat_nbatch,
        "all_frames": all_frames,
        "parameters": (config.model.fitting_net.numb_fparam, config.model.fitting_net.numb_aparam),
        "cutoffs": [(c.rcut, c.rcut_smth, sorted(c.exclude), c.protection) for c in cutoffs],
        "shape": [data.n_frames.tolist(), data.natoms.tolist(), plan.batch_sizes.tolist()],
        "content": digest_frames(plan, config.model.data_stat_nbatch, all_frames=all_frames),
    }
    return hashlib.sha256(json.dumps(questions).encode()).hexdigest()[:32]


def _read(path: Path, key: str, config: Input) -> Survey | None:
    if not path.is_file():
        return None
    try:
        with h5py.File(path, "r") as file:
            if key not in file:
                return None
            stored = file[key]
            survey = Survey.empty(config.model)
            survey.max_count = stored["max_count"][()]
            survey.min_distance = float(stored["min_distance"][()])
            for number, part in enumerate(survey.sums()):
                part[...] = stored[f"sums_{number}"][()]
            return survey
    except (OSError, KeyError, ValueError) as error:
        raise UserError(
            f"cannot be read as statistics: {error}",
            where="training.stat_file",
            value=str(path),
            remedy="remove the file, or name another",
        ) from error


def _write(path: Path, key: str, survey: Survey) -> None:
    with written_whole(path) as temporary:
        if path.is_file():
            temporary.write_bytes(path.read_bytes())
        with h5py.File(temporary, "a") as file:
            stored = file.create_group(key)
            stored["max_count"] = np.asarray(survey.max_count)
            stored["min_distance"] = survey.min_distance
            for number, part in enumerate(survey.sums()):
                stored[f"sums_{number}"] = part
