"""A device that works behind the program's back is waited for once a step, and nothing else changes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thread_group import on_ranks

from lockstep.checkpoint.find import load_checkpoint
from lockstep.errors import UserError
from lockstep.observe.lcurve import read_lcurve
from lockstep.parallel.group import Group
from lockstep.tasks.energy.task import EnergyTask
from lockstep.training.loop import Trainer
from lockstep.training.verdict import Verdict
from runs import dp, tiny_input, tiny_system, write_input
from standins import RecordingDevice, standing_in

CALLS = RecordingDevice.calls


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train", n_frames=6)
    tiny_system(tmp_path / "valid", n_frames=3, seed=1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUM_WORKERS", "1")
    return tmp_path


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with standing_in("cpu", RecordingDevice, monkeypatch):
        yield


def train(folder: Path, *arguments: str, **changes: Any) -> int:
    changes = {"training__validation_data": {"systems": ["valid"]}, "training__numb_steps": 12, **changes}
    write_input(folder, tiny_input(**changes))
    return dp("train", "input.json", "-v", "WARNING", *arguments)


def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What each step to come asks of the device, from its first phase to its last."""
    run, asked = Trainer.step, []

    def step(self: Trainer, number: int) -> Any:
        asked.append(CALLS[:])
        CALLS.clear()
        return run(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    return asked


QUIET = {"training__disp_freq": 100, "training__save_freq": 100, "training__numb_steps": 9}


def test_a_step_waits_once_and_for_the_step_before(folder: Path, behind: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = steps(monkeypatch)
    assert train(folder, **QUIET) == 0
    # What was taken down at the beginning of a step is what the step before it has asked for; the first is displayed.
    for calls in asked[3:]:
        talk = [call for call in calls if call != "mark"]
        assert talk == ["taken", "fetch", "wait"], talk


def test_samples_are_made_by_other_threads_alone(folder: Path, behind: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = steps(monkeypatch)
    assert train(folder, **QUIET) == 0
    assert not any("upload" in calls for calls in asked[3:])
    assert "upload" in RecordingDevice.ahead_calls


def test_nothing_asks_for_numbers_behind_the_back_of_the_device(
    folder: Path, behind: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.item()`, and `if` and `float()` of a tensor, ask for one number each."""
    found = []
    for name in ("item", "__bool__", "__float__", "__int__", "cpu"):
        method = getattr(torch.Tensor, name)

        def asking(tensor: torch.Tensor, *args: Any, name: str = name, method: Any = method) -> Any:
            if threading.current_thread() is threading.main_thread():
                found.append(name)
            return method(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, asking)
    run, asked = Trainer.step, []

    def step(self: Trainer, number: int) -> Any:
        asked.append(found[:])
        found.clear()
        return run(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    assert train(folder, **QUIET, model__descriptor__spectral=32) == 0
    assert [calls for calls in asked[3:] if calls] == []


@pytest.mark.parametrize("optimizer", ["Adam", "SOAP"])
def test_the_course_of_a_training_is_the_same_to_the_last_bit(
    optimizer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"optimizer": {"type": optimizer}, "training__disp_avg": True}
    assert train(folder, **changes) == 0
    curve, weights = Path("lcurve.out").read_bytes(), load_checkpoint("model.ckpt").tensors
    with standing_in("cpu", RecordingDevice, monkeypatch):
        assert train(folder, **changes) == 0
        assert Path("lcurve.out").read_bytes() == curve
        assert_same(load_checkpoint("model.ckpt").tensors, weights)
        assert dp("train", "input.json", "-v", "WARNING", "--restart", "model.ckpt-8") == 0
        assert Path("lcurve.out").read_bytes() == curve
        assert_same(load_checkpoint("model.ckpt").tensors, weights)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("bad", [5, 8, 12])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_bad_step_is_named_and_reaches_no_checkpoint(
    what: str, bad: int, folder: Path, behind: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Step 5 is judged by its successor; steps 8 and 12 are saved, and step 12 is the last."""
    method, calls = EnergyTask.loss, count(1)

    def loss(self: EnergyTask, sample: Any, lr: float) -> Any:
        terms = method(self, sample, lr)
        if not torch.is_grad_enabled() or next(calls) != bad:
            return terms
        if what == "gradient":
            weight = next(iter(self.module.parameters()))
            return replace(terms, total=terms.total + (0 * weight.sum()).abs().sqrt())
        values = terms.metrics.values.clone()
        values[0] = torch.nan
        return replace(terms, total=terms.total * torch.nan, metrics=replace(terms.metrics, values=values))

    monkeypatch.setattr(EnergyTask, "loss", loss)
    assert train(folder, training__disp_freq=100) == 2
    message = capfd.readouterr().err
    assert f"the {what} is not a finite number at step {bad}" in message
    last = load_checkpoint("model.ckpt")
    assert last.step == (bad - 1) // 4 * 4
    assert all(bool(torch.isfinite(tensor).all()) for tensor in last.tensors.values())


def test_a_bad_step_is_not_shown(folder: Path, behind: None, capfd: pytest.CaptureFixture[str]) -> None:
    file = folder / "train" / "set.000" / "force.npy"
    forces = np.load(file)
    forces[3, 0] = 1e300
    np.save(file, forces)
    assert train(folder, training__disp_freq=1) == 2
    assert re.search(r"not a finite number at step \d+", capfd.readouterr().err)
    assert all(np.isfinite(column).all() for name, column in read_lcurve("lcurve.out").items() if "val" not in name)


def test_the_rank_of_a_bad_step_is_named_a_step_later() -> None:
    """Rank 2 has a bad loss in step 3; all ranks learn of it in step 4, and name both."""

    def train(group: Group) -> str:
        verdict = Verdict(group, RecordingDevice(torch.device("cpu")))
        good = torch.ones((), dtype=torch.float64)
        for step in range(1, 5):
            own = good * torch.nan if step == 3 and group.rank == 2 else good
            total = good * torch.nan if step == 3 else good
            try:
                verdict.note(step, (total, own), (good, good), good * 0)
            except UserError as error:
                return f"{error} (found in step {step})"
        return "nothing"

    for message in on_ranks(3, train):
        assert "the loss is not a finite number at step 3, on rank 2" in message
        assert message.endswith("(found in step 4)")


def test_a_wish_to_stop_is_seen_a_step_later_and_by_settling() -> None:
    verdict = Verdict(on_ranks(1, lambda group: group)[0], RecordingDevice(torch.device("cpu")))
    good = torch.ones((), dtype=torch.float64)
    verdict.note(1, (good, good), (good, good), good)
    assert not verdict.stopping
    verdict.settle()
    assert verdict.stopping
