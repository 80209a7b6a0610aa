"""What more workers mean for the learning rate and the steps: in the files, in the log, and over restarts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from copper import curve, largest_difference, logged, train_on_threads, weights, write_copper

from lockstep.checkpoint.find import load_checkpoint

BASE = 0.002


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.0), ("sqrt", math.sqrt(2)), ("none", 1.0)])
def test_the_rate_grows_with_the_workers_as_asked(
    rule: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_copper(tmp_path, learning_rate__scale_by_worker=rule, training__numb_steps=3, training__disp_freq=1)
    with logged() as messages:
        train_on_threads(file, 2)
    assert curve(tmp_path)[0, -1] == pytest.approx(BASE * factor, rel=0.03)
    effective = f"{BASE * factor:.3g}"
    line = f"learning rate: base 0.002 x {factor:.4g} ({rule}, 2 workers) = {effective}"
    assert messages("learning rate:")[0] == line
    assert messages("global batch:")[0] == "global batch: 2 frames = 1 per micro-batch x 1 accumulated x 2 workers"
    assert messages("samples seen:")[0] == "samples seen: 2 per step, 6 in 3 steps"


def test_the_default_is_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_on_threads(write_copper(tmp_path, training__numb_steps=1, training__disp_freq=1), 3)
    assert curve(tmp_path)[0, -1] == pytest.approx(3 * BASE, rel=0.03)


def test_gradients_may_be_rounded_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for precision in ("default", "float32"):
        folder = tmp_path / precision
        folder.mkdir()
        monkeypatch.chdir(folder)
        train_on_threads(write_copper(folder, training__exchange_precision=precision, training__numb_steps=6), 2)
        found[precision] = weights(folder)
    assert 1e-12 < largest_difference(found["float32"], found["default"]) < 1e-4


SCALED: dict[str, Any] = {
    "training__scale_steps_by_worker": True,
    "training__numb_steps": 40,
    "training__disp_freq": 8,
    "training__save_freq": 20,
    "learning_rate__decay_steps": 4,
    "learning_rate__warmup_steps": 8,
    "learning_rate__scale_by_worker": "none",
}


def test_steps_and_intervals_are_divided_by_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with logged() as messages:
        train_on_threads(write_copper(tmp_path, **SCALED), 4)
    done = json.loads((tmp_path / "out.json").read_text())
    assert [done["training"][key] for key in ("numb_steps", "disp_freq", "save_freq")] == [10, 2, 5]
    assert [done["learning_rate"][key] for key in ("decay_steps", "warmup_steps")] == [1, 2]
    assert curve(tmp_path)[:, 0].tolist() == [1, 2, 4, 6, 8, 10]
    assert sorted(path.name for path in tmp_path.glob("model.ckpt-*")) == [
        "model.ckpt-10.safetensors",
        "model.ckpt-5.safetensors",
    ]
    assert messages("samples seen:")[0] == "samples seen: 4 per step, 40 in 10 steps"


LENGTHS = [
    pytest.param({}, id="steps divided by the workers"),
    pytest.param({"training__numb_steps": None, "training__numb_epoch": 1 / 3}, id="epochs"),
]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_scaled_run_that_goes_on_on_fewer_workers_sees_as_many_samples(
    length: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the samples on four workers, half on two: the rate at the end is that of the end, not of the middle."""
    monkeypatch.chdir(tmp_path)
    settings = {**SCALED, "learning_rate__warmup_steps": 0, "training__disp_freq": 4, **length}
    train_on_threads(write_copper(tmp_path, **settings), 4)
    last_rate = curve(tmp_path)[-1, -1]
    train_on_threads(write_copper(tmp_path, **settings), 2, restart="model.ckpt-5")
    checkpoint = load_checkpoint(tmp_path / "model.ckpt")
    assert checkpoint.step == 5 + 10
    assert checkpoint.info["stream"]["position"] == 40
    assert curve(tmp_path)[-1, -1] == pytest.approx(last_rate, rel=0.35)
    with logged() as messages:
        train_on_threads(write_copper(tmp_path, **settings), 4, restart="model.ckpt")
    assert messages("Nothing is left to train"), "the samples are used up"
