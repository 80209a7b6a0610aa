"""Saving behind the training's back: steps go on, files are those of their step, errors are told, nothing is lost."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.checkpoint.background import BackgroundStore
from lockstep.checkpoint.find import load_checkpoint
from lockstep.checkpoint.format import Frozen
from lockstep.checkpoint.store import CheckpointStore
from lockstep.errors import CheckpointError
from runs import dp, dp_process, tiny_input, tiny_system, write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train")
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRITES_WHEN_TRAINING_IS_FURTHER = """
import time
from pathlib import Path
from lockstep.checkpoint.store import CheckpointStore
write = CheckpointStore.write
def patient(self, frozen):
    if frozen.step == 4:
        deadline = time.monotonic() + 60
        while not any(line.split()[0] == "6" for line in Path("lcurve.out").read_text().splitlines()):
            assert time.monotonic() < deadline, "no step was done while the checkpoint was being written"
            time.sleep(0.01)
    return write(self, frozen)
CheckpointStore.write = patient
"""


def test_steps_go_on_while_a_checkpoint_of_an_earlier_step_is_written(folder: Path) -> None:
    """The checkpoint of step 4 is written when step 6 is done, and still holds the weights of step 4."""
    write_input(folder, tiny_input(training__numb_steps=12, training__save_freq=4, training__disp_freq=2))
    assert dp("train", "input.json") == 0
    expected = load_checkpoint("model.ckpt-4")
    process = dp_process("train", "input.json", prelude=WRITES_WHEN_TRAINING_IS_FURTHER)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found = load_checkpoint("model.ckpt-4")
    assert found.step == 4
    assert found.info["stream"] == expected.info["stream"]
    for name, tensor in expected.tensors.items():
        assert torch.equal(tensor, found.tensors[name]), name
    assert load_checkpoint("model.ckpt").step == 12
    told = [line for line in errors.splitlines() if "Batch       6" in line or "model.ckpt-4" in line]
    assert "Saved model to model.ckpt-4.safetensors" in told[-1], "told before it was on the disk"


class SlowStore(CheckpointStore):
    """Notes how many writes happen at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.now = self.most = 0
        self.lock = threading.Lock()

    def write(self, frozen: Frozen) -> Path:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1
        return super().write(frozen)


def test_two_saves_never_overlap_and_come_in_order(folder: Path) -> None:
    slow = SlowStore("model.ckpt", 3)
    store = BackgroundStore(slow)
    weights = torch.zeros(3)
    for step in range(1, 8):
        weights.fill_(step)
        store.save(step, {"model.w": weights}, {})
        weights.fill_(-1)
    store.wait()
    assert slow.most == 1
    for step in (5, 6, 7):
        assert load_checkpoint(f"model.ckpt-{step}").tensors["model.w"].tolist() == [step] * 3
    assert load_checkpoint("model.ckpt").step == 7


@pytest.mark.parametrize("call", ["check", "wait", "save"])
def test_an_error_is_raised_by_the_next_call_and_only_once(call: str, folder: Path) -> None:
    (folder / "mine").write_text("a file")
    store = BackgroundStore(CheckpointStore("mine/model.ckpt", 3))
    store.save(1, {}, {})
    store.close()
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        store.save(2, {}, {}) if call == "save" else getattr(store, call)()
    store.wait()


def test_a_failed_checkpoint_ends_the_run_at_one_of_the_next_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(self: CheckpointStore, path: Path) -> None:
        raise OSError(28, "No space left on device")

    write_input(folder, tiny_input(training__numb_steps=100000, training__save_freq=4, training__disp_freq=100000))
    monkeypatch.setattr(CheckpointStore, "_publish", full)
    assert dp("train", "input.json") == 2
    message = capfd.readouterr().err
    assert "model.ckpt-4.safetensors: the checkpoint of" in message
    assert "No space left on device (free space in" in message
    assert "continue with dp train --restart model.ckpt" in message
    assert "Traceback" not in message


SLOW_DISK = """
import os, time
from pathlib import Path
flush = os.fsync
def slow(descriptor):
    Path("flushing").touch()
    time.sleep(0.5)
    flush(descriptor)
os.fsync = slow
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_end_finishes_the_checkpoint_it_is_writing(number: int, folder: Path) -> None:
    write_input(folder, tiny_input(training__numb_steps=100000, training__save_freq=50, training__disp_freq=100000))
    process = dp_process("train", "input.json", prelude=SLOW_DISK)
    deadline = time.monotonic() + 200
    while not (folder / "flushing").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    # out.json is flushed first: what counts is the temporary file of a checkpoint.
    while not list(folder.glob(".model.ckpt-50.*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 128 + number, errors
    assert load_checkpoint("model.ckpt").step >= 50
    assert not list(folder.glob(".*.tmp"))
