"""Folders of runs that were never made: files of known content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.observe.lcurve import LearningCurve

_MESSAGES = """\
INFO ---Summary of the training---------------------------------------
INFO distributed
INFO world size:           2
INFO node list:            ['n1']
INFO computing device:     cpu:0
INFO num_intra_threads:    1
INFO -----------------------------------------------------------------
INFO ---Summary of DataSystem: Training     --------------------------
INFO Found 1 System(s):
INFO                           system  natoms  bch_sz   n_bch       prob  pbc
INFO                           {name}      32       1      60  1.000e+00    T
INFO 60 frames, 32 to 32 atoms
INFO -----------------------------------------------------------------
WARNING the weather is bad
INFO finished training
INFO wall time: 61.000 s
"""
LOG = "".join(
    f"[2026-01-01 10:00:00,000] DEEPMD {level:7s} {'lockstep.training.session':45s} {message}\n"
    for level, _, message in (line.partition(" ") for line in _MESSAGES.splitlines())
)


def write_curve(folder: Path, steps: list[int]) -> None:
    with LearningCurve(folder / "lcurve.out", ("rmse", "rmse_e", "rmse_f"), True) as curve:
        for step in steps:
            errors = {"rmse": 10 / step, "rmse_e": 1 / step, "rmse_f": 2 / step}
            curve.write(step, 1e-3, errors, errors)


def budget_line(step: int, ranks: int = 2) -> dict[str, Any]:
    return {
        "step": step,
        "wall": 2.0,
        "steps": 10,
        "samples": 20,
        "samples_per_s": 10.0 * ranks,
        "per_rank_samples_per_s": [10.0 + rank for rank in range(ranks)],
        "budget": {"forward": 0.5, "communication": 0.3, "wait": 0.2, "checkpoint": 0.0},
        "busy": 0.5,
    }


def write_budget(folder: Path, steps: list[int], ranks: int = 2) -> None:
    text = "".join(json.dumps(budget_line(step, ranks)) + "\n" for step in steps)
    (folder / "budget.jsonl").write_text(text)


def write_profile(folder: Path, job: str = "77") -> None:
    for rank in range(2):
        own = {"host": "n1", "communication": 2.0, "wait": 0.5, "elapsed": 8.0, "user": 5, "system": 1, "memory": 99}
        large = {"calls": 10, "bytes": 10 * (300_000 + rank), "seconds": 1.5, "wait": 0.5}
        small = {"calls": 1, "bytes": 8, "seconds": 0.5, "wait": 0.0}
        record = {"job": job, "rank": rank, "size": 2, "backend": "gloo", "own": own}
        record["routines"] = {"MPI_Allreduce": [small, large]}
        (folder / f"mpi_profile.{job}.{rank}.json").write_text(json.dumps(record))


def write_details(folder: Path, count: int = 50) -> None:
    rng = np.random.default_rng(0)
    for suffix, letters in (("e", "e"), ("e_peratom", "e"), ("f", "xyz")):
        label = rng.normal(size=(count, len(letters)))
        header = "w: " + " ".join(f"{side}_{letter}" for side in ("data", "pred") for letter in letters)
        np.savetxt(folder / f"detail.{suffix}.out", np.hstack([label, label + 0.5]), header=header)


def make_run(folder: Path, system: str = "data/a b") -> Path:
    """A finished run with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = [1, *range(10, 101, 10)]
    write_curve(folder, steps)
    write_budget(folder, steps)
    write_profile(folder)
    write_details(folder)
    (folder / "train.log").write_text(LOG.format(name=system))
    data = {"training": {"numb_steps": 100, "disp_file": "lcurve.out", "training_data": {"systems": [system]}}}
    (folder / "out.json").write_text(json.dumps(data))
    return folder


SCALING: dict[str, Any] = {
    "format": "lockstep-scaling-1",
    "input": "input.json",
    "mode": "weak",
    "launcher": "torchrun",
    "threads": 1,
    "host": "n1",
    "device": "cpu",
    "places": 2,
    "load": 0.0,
    "steps": 100,
    "warmup": 30,
    "date": "2026-01-01",
    "versions": {"Lockstep": "0"},
}


def make_scaling(folder: Path) -> Path:
    """A scaling test, by the code that makes real ones."""
    from lockstep.scaling.measure import Measurement
    from lockstep.scaling.result import Conditions, make_result

    folder.mkdir(parents=True, exist_ok=True)
    conditions = Conditions(**{key: value for key, value in SCALING.items() if key != "format"})
    budget = {"forward": 0.8, "communication": 0.15, "wait": 0.05}
    rows = [Measurement(w, 1, 1, w > 2, 100, 0.02 + 0.001 * w, 2.0 * w, 0.1, budget) for w in (1, 2, 4)]
    (folder / "scaling.json").write_text(json.dumps(make_result(conditions, rows, (8, 64, 512))))
    return folder
