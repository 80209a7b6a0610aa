"""A launcher that trains nothing but leaves the files of a run, and the command line as a function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SAMPLE: dict[str, Any] = {
    "model": {
        "type_map": ["A"],
        "descriptor": {
            "type": "se_e2_a",
            "sel": [8],
            "rcut": 4.0,
            "rcut_smth": 1.0,
            "neuron": [4, 8],
            "axis_neuron": 2,
        },
        "fitting_net": {"neuron": [8]},
    },
    "learning_rate": {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-5, "warmup_steps": 500},
    "training": {
        "training_data": {"systems": ["data"], "batch_size": 2},
        "validation_data": {"systems": ["data"]},
        "numb_steps": 100000,
        "disp_file": "curve.out",
        "save_ckpt": "precious.ckpt",
        "stat_file": "stat.hdf5",
        "tensorboard": True,
        "scale_steps_by_worker": True,
    },
}
"""An input file with everything that a timing run must not do."""

FAKE = """
import json, math, os, sys
workers = int(sys.argv[1])
assert sys.argv[3:6] == ["-m", "lockstep.cli.main", "train"]
if workers in FAILING:
    print("step 7: the loss is not a number")
    print("E1115 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)")
    print("noise " * 10)
    sys.exit(3)
training = json.load(open("input.json"))["training"]
k, shared = training["acc_freq"], training["ranks_per_frame"]
open("environment.json", "w").write(json.dumps(dict(os.environ)))
open("model.ckpt-9.safetensors", "w").close()
forward = k * (0.004 + 0.016 / shared)
parts = {"forward": forward, "communication": 0.002 * math.log2(workers), "wait": 0.001 * (workers > 1)}
step = sum(parts.values())
with open("budget.jsonl", "w") as file:
    for number in [1, *range(training["disp_freq"], training["numb_steps"] + 1, training["disp_freq"])]:
        steps = 1 if number == 1 else training["disp_freq"]
        wall = 9.0 if number == 1 else step * steps
        budget = {name: value / step for name, value in parts.items()}
        samples = steps * k * workers * 2 // shared
        line = {"step": number, "wall": wall, "steps": steps, "samples": samples, "budget": budget}
        file.write(json.dumps(line) + "\\n")
"""


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with an input file and its data."""
    system = tmp_path / "data" / "set.000"
    system.mkdir(parents=True)
    (tmp_path / "data" / "type.raw").write_text("0\n0\n")
    np.save(system / "coord.npy", np.zeros((1, 6)))
    (tmp_path / "input.json").write_text(json.dumps(SAMPLE))
    return tmp_path


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., str]:
    """The `--launcher` of runs that take a known time; some fail."""

    def make(failing: tuple[int, ...] = ()) -> str:
        path = tmp_path / "fake.py"
        path.write_text(f"FAILING = {failing!r}\n{FAKE}")
        return f"{sys.executable} {path} {{n}}"

    return make
