"""Tiny trainings on the copper example, to be started by real launchers or on threads of this process."""

from __future__ import annotations

import copy
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from thread_group import on_ranks

from lockstep.checkpoint.find import load_checkpoint
from lockstep.config import load_input
from lockstep.parallel.devices import Placement
from lockstep.parallel.group import Group
from lockstep.tasks.energy import spectral
from lockstep.training.options import Options
from lockstep.training.session import train
from runs import COPPER

TINY: dict[str, Any] = {
    "model": {
        "type_map": ["Cu"],
        "descriptor": {
            "type": "se_e2_a",
            "sel": [32],
            "rcut": 4.0,
            "rcut_smth": 2.0,
            "neuron": [4, 8],
            "axis_neuron": 4,
            "seed": 1,
        },
        "fitting_net": {"neuron": [16, 16], "seed": 1},
    },
    "learning_rate": {"type": "exp", "start_lr": 0.002, "stop_lr": 1e-4, "decay_steps": 5},
    "loss": {"start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
    "training": {
        "training_data": {"systems": [str(COPPER / "train_0"), str(COPPER / "train_1")], "batch_size": 1},
        "validation_data": {"systems": [str(COPPER / "validation")], "batch_size": 1, "numb_btch": 3},
        "numb_steps": 12,
        "disp_freq": 3,
        "save_freq": 6,
        "seed": 7,
    },
}


def write_copper(folder: Path, **changes: Any) -> Path:
    """An input file in `folder`: the tiny training, with changed keys written as `section__key=value`."""
    data = copy.deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "input.json"
    file.write_text(json.dumps(data, indent=1))
    return file


def train_on_threads(file: Path, ranks: int, **options: Any) -> None:
    """The trainer on so many ranks, which are threads; works in the current folder."""

    # Ranks are processes otherwise: torch's forward differentiation serves one thread at a time.
    lock, error = threading.Lock(), spectral.expansion_error

    def one_at_a_time(*arguments: Any) -> float:
        with lock:
            return error(*arguments)

    def work(group: Group) -> None:
        train(load_input(file), file.parent, Options(**options), group, Placement("cpu", 1, 1))

    with mock.patch.object(spectral, "expansion_error", one_at_a_time):
        on_ranks(ranks, work)


def weights(folder: Path, name: str = "model.ckpt") -> dict[str, np.ndarray]:
    checkpoint = load_checkpoint(folder / name)
    return {key: tensor.numpy() for key, tensor in checkpoint.group("model").items()}


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a if a[name].size)


def curve(folder: Path) -> np.ndarray:
    return np.atleast_2d(np.loadtxt(folder / "lcurve.out"))


@contextmanager
def logged(level: int = logging.INFO) -> Iterator[Callable[[str], list[str]]]:
    """What is logged meanwhile: yields a function from a pattern to the messages that match it."""
    records: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    logger, keeper = logging.getLogger("lockstep"), Keeper(level)
    before = logger.level
    logger.addHandler(keeper)
    logger.setLevel(level)
    try:
        yield lambda pattern: [text for text in records if re.search(pattern, text)]
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(before)
