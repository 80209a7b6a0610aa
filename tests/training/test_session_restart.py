"""A run that was stopped and restarted ends as the run that was never stopped: bit for bit, row for row."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.products import maker
from lockstep.training.loop import Trainer
from runs import SLOW_STEPS, TINY, dp, dp_process, folder_state, tiny_input, tiny_system, write_input

TWO_SYSTEMS = {"systems": ["train", "other"], "batch_size": [1, 2], "auto_prob": "prob_sys_size;0:1:0.3;1:2:0.7"}
ATTEN = {"sel": "auto", "rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3, "attn_layer": 0, "tebd_dim": 3, "seed": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "disp_avg": {"training__disp_avg": True, "training__disp_freq": 5},
    "disp_avg, accumulated": {"training__disp_avg": True, "training__disp_freq": 5, "training__acc_freq": 2},
    "accumulated": {"training__acc_freq": 2},
    "validation": {"training__validation_data": {"systems": "valid", "batch_size": 2, "numb_btch": 2}},
    "exact nets": {"model__descriptor__spectral": "off"},
    "clipped": {"training__gradient_max_norm": 0.01},
    "average of the weights": {"training__enable_ema": True, "training__ema_decay": 0.7},
    "two systems": {"training__training_data": TWO_SYSTEMS},
    "float32": {"model__descriptor__precision": "float32", "model__fitting_net__precision": "float32"},
    "SOAP": {
        "optimizer": {"type": "SOAP", "min_side": 8, "frequency": 3, "max_block": 5},
        "learning_rate__start_lr": 0.001,
    },
    "AdamW, cosine, warm-up": {
        "optimizer": {"type": "AdamW", "weight_decay": 0.01},
        "learning_rate": {"type": "cosine", "start_lr": 0.01, "stop_lr": 1e-5, "warmup_steps": 3},
    },
    "epochs": {"training__numb_steps": None, "training__numb_epoch": 2},
    "sel by counting": {"model__descriptor__sel": "auto"},
    "se_e2_r": {"model__descriptor": {"type": "se_e2_r", "rcut": 4.0, "neuron": [4, 8], "seed": 1}},
    "se_atten": {"model__descriptor": {**ATTEN, "type": "se_atten"}},
    "se_atten_v2": {"model__descriptor": {**ATTEN, "type": "se_atten_v2"}},
    "hybrid": {
        "model__descriptor": {
            "type": "hybrid",
            "list": [{**ATTEN, "type": "dpa1", "rcut": 3.5}, {**TINY["model"]["descriptor"], "sel": "auto"}],
        }
    },
    "frozen layers": {"model__fitting_net__trainable": [False, True, True], "model__descriptor__trainable": False},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tiny_system(folder / "train", n_frames=6)
    tiny_system(folder / "other", n_frames=5, types=(1, 0, 1), seed=5)
    tiny_system(folder / "valid", n_frames=5, seed=9)
    return folder


def run_folder(tmp_path: Path, data: Path, name: str, settings: dict[str, Any]) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for system in data.iterdir():
        (folder / system.name).symlink_to(system)
    write_input(folder, settings)
    return folder


def stop_before(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the next run be interrupted as it begins its update number `step` (from 0)."""
    original = Trainer.step

    def interrupted(self: Trainer, at: int) -> Any:
        if at == step:
            raise KeyboardInterrupt
        return original(self, at)

    monkeypatch.setattr(Trainer, "step", interrupted)


def assert_same_end(stopped: Path, whole: Path) -> None:
    one, other = load_checkpoint(stopped / "model.ckpt"), load_checkpoint(whole / "model.ckpt")
    assert one.step == other.step
    assert one.info == other.info
    assert sorted(one.tensors) == sorted(other.tensors)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
    assert (stopped / "lcurve.out").read_bytes() == (whole / "lcurve.out").read_bytes()


@pytest.mark.parametrize("name", VARIANTS)
def test_restart_is_bit_for_bit(
    name: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_input(**VARIANTS[name])
    whole = run_folder(tmp_path, data, "whole", settings)
    monkeypatch.chdir(whole)
    assert dp("train", "input.json") == 0
    stopped = run_folder(tmp_path, data, "stopped", settings)
    monkeypatch.chdir(stopped)
    # Twice: at a step after the second checkpoint, then, gone on from there, before the first new one.
    for step, arguments in ((10, ()), (9, ("--restart", "model.ckpt"))):
        with monkeypatch.context() as patch:
            stop_before(patch, step)
            assert dp("train", "input.json", *arguments) == 130
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    capfd.readouterr()
    assert_same_end(stopped, whole)


def test_restart_goes_on_with_a_refined_expansion(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The change takes effect ahead of the step at which it is decided: a stop in between must not lose it."""
    from lockstep.tasks.energy import spectral

    monkeypatch.setattr(spectral, "CHECK_EVERY", 3)
    monkeypatch.setattr(spectral, "LOOKAHEAD", 4)
    settings = tiny_input(model__descriptor__spectral=1e-3, learning_rate__start_lr=0.5)
    whole = run_folder(tmp_path, data, "whole", settings)
    monkeypatch.chdir(whole)
    assert dp("train", "input.json") == 0
    state = load_checkpoint(whole / "model.ckpt").info["spectral"]
    assert len(state["parts"][0]["starts"]) > 1, "the expansion was never refined, so this test shows nothing"
    stopped = run_folder(tmp_path, data, "stopped", settings)
    monkeypatch.chdir(stopped)
    with monkeypatch.context() as patch:
        stop_before(patch, 7)
        assert dp("train", "input.json") == 130
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    capfd.readouterr()
    assert_same_end(stopped, whole)


def wait_for_rows(curve: Path, rows: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if curve.is_file() and curve.read_text().count("\n") >= rows + 2:
            return
        time.sleep(0.01)
    raise AssertionError("the run has not come this far")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=lambda v: str(v)
)
def test_killed_process_restarts_bit_for_bit(
    number: int, code: int, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_input(training__numb_steps=90, training__save_freq=7, training__disp_freq=5)
    whole = run_folder(tmp_path, data, "whole", settings)
    stopped = run_folder(tmp_path, data, "stopped", settings)
    monkeypatch.chdir(whole)
    assert dp("train", "input.json") == 0
    process = dp_process("train", "input.json", prelude=SLOW_STEPS, cwd=stopped)
    wait_for_rows(stopped / "lcurve.out", 4)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert ("the run saves and ends after step" in errors) == (number == signal.SIGTERM)
    assert not list(stopped.glob("*-90.*")), "the run had ended before it was stopped"
    monkeypatch.chdir(stopped)
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    assert_same_end(stopped, whole)


def test_restart_of_a_finished_run_changes_nothing(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input())
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    capfd.readouterr()
    assert_same_end(folder, tmp_path / "copy")


def test_damaged_newest_checkpoint_is_named_and_the_one_before_used(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run_folder(tmp_path, data, "whole", tiny_input())
    monkeypatch.chdir(whole)
    assert dp("train", "input.json") == 0
    shutil.copytree(whole, tmp_path / "stopped", symlinks=True)
    newest = tmp_path / "stopped" / "model.ckpt-12.safetensors"
    content = bytearray(newest.read_bytes())
    content[-20] ^= 1
    newest.write_bytes(content)
    monkeypatch.chdir(tmp_path / "stopped")
    capfd.readouterr()
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    log = capfd.readouterr().err
    assert "model.ckpt-12.safetensors is damaged" in log
    assert "going on from model.ckpt-8.safetensors" in log
    assert "Start to train 4 steps" in log
    assert_same_end(tmp_path / "stopped", whole)


def test_nothing_left_is_said(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input())
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    before = (folder / "lcurve.out").read_bytes()
    write_input(folder, tiny_input(training__numb_steps=2))
    capfd.readouterr()
    assert dp("train", "input.json", "--restart", "auto") == 0
    log = capfd.readouterr().err
    assert "Nothing is left to train: 12 steps are done, and 2 were asked for" in log
    assert "Start to train" not in log
    assert (folder / "lcurve.out").read_bytes() == before


@pytest.mark.parametrize(("first", "then", "words"), [
    ("auto", "off", "the exact nets"),
    ("auto", 1e-15, "the exact nets, which 512 intervals do not follow to 1e-15"),
    ("auto", 96, "96 intervals"),
    (96, "auto", "24 intervals"),
    ("off", "auto", "24 intervals"),
    (48, 48, "48 intervals"),
])  # fmt: skip
def test_another_expansion_is_used_from_the_restart_on(
    first: Any, then: Any, words: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input(model__descriptor__spectral=first))
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    write_input(folder, tiny_input(model__descriptor__spectral=then, training__numb_steps=14))
    capfd.readouterr()
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    log = capfd.readouterr().err
    assert f"spectral embedding: {words}\n" in log
    assert ("differs from the exact nets" in log) == ("exact" not in words)


def test_restart_auto_begins_goes_on_and_ends_by_one_command(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Beside another run's files, whose pointer is in the same folder."""
    settings = tiny_input(training__save_ckpt="own.ckpt", training__disp_file="own.out")
    whole = run_folder(tmp_path, data, "whole", settings)
    monkeypatch.chdir(whole)
    assert dp("train", "input.json", "--restart", "auto") == 0
    folder = run_folder(tmp_path, data, "run", tiny_input(training__numb_steps=3))
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    write_input(folder, settings)
    for step in (2, 6, 9):
        with monkeypatch.context() as patch:
            stop_before(patch, step)
            assert dp("train", "input.json", "--restart", "auto") == 130
    log = capfd.readouterr().err
    assert "There is no checkpoint of own.ckpt yet: the run begins" in log
    assert "Loaded own.ckpt-4.safetensors (step 4)" in log
    assert dp("train", "input.json", "--restart", "auto") == 0
    assert "Loaded own.ckpt-8.safetensors (step 8)" in capfd.readouterr().err
    assert (folder / "own.out").read_bytes() == (whole / "own.out").read_bytes()
    assert load_checkpoint("model.ckpt").step == 3


def test_restart_auto_refuses_to_forget_a_damaged_run(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input())
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    for path in folder.glob("model.ckpt-*"):
        path.write_bytes(b"")
    assert dp("train", "input.json", "--restart", "auto") == 2
    assert "all checkpoints are damaged" in capfd.readouterr().err


def test_restart_with_more_steps_goes_on(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input())
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    write_input(folder, tiny_input(training__numb_steps=16, training__seed=4))
    before = (folder / "lcurve.out").read_text()
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    assert "training.seed = 4 has no effect: the run goes on with the checkpoint's" in capfd.readouterr().err
    after = (folder / "lcurve.out").read_text()
    assert after.startswith(before)
    assert [line.split()[0] for line in after[len(before) :].splitlines()] == ["14", "16"]
    assert load_checkpoint("model.ckpt").step == 16


SOAP = {"type": "SOAP", "min_side": 8}


@pytest.mark.parametrize(("first", "then", "key"), [
    (SOAP, {"type": "Adam"}, "type = 'Adam': the checkpoint was written with SOAP"),
    ({"type": "AdamW"}, SOAP, "type = 'SOAP': the checkpoint was written with AdamW"),
    (SOAP, SOAP | {"max_block": 5}, "max_block = 5: the checkpoint was written with 128"),
])  # fmt: skip
def test_state_of_another_optimizer_is_refused(
    first: Any, then: Any, key: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input(optimizer=first, training__numb_steps=3))
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    write_input(folder, tiny_input(optimizer=then))
    before = folder_state(folder)
    capfd.readouterr()
    assert dp("train", "input.json", "--restart", "model.ckpt") == 2
    log = capfd.readouterr().err
    assert f"optimizer.{key}" in log
    assert "remedy: put" in log
    assert folder_state(folder) == before
    assert dp("train", "input.json", "--init-model", "model.ckpt") == 0


@pytest.mark.parametrize(("first", "then", "words"), [
    ({"type": "Adam"}, {"type": "AdamW"}, "optimizer.type = AdamW, and Adam in the run before"),
    (SOAP, SOAP | {"beta1": 0.9}, "optimizer.beta1 = 0.9, and 0.95 in the run before"),
    (SOAP, SOAP, None),
])  # fmt: skip
def test_another_setting_of_the_same_state_is_told(
    first: Any, then: Any, words: str | None, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    folder = run_folder(tmp_path, data, "run", tiny_input(optimizer=first, training__numb_steps=3))
    monkeypatch.chdir(folder)
    assert dp("train", "input.json") == 0
    write_input(folder, tiny_input(optimizer=then))
    capfd.readouterr()
    monkeypatch.setattr("lockstep.products.maker", lambda: "another library" if words else maker())
    assert dp("train", "input.json", "--restart", "model.ckpt") == 0
    log = capfd.readouterr().err
    assert words is None or words in log
    assert ("in the run before" in log) == (words is not None)
    assert (f"matrix products: by another library, and by {maker()} in the run before" in log) == (words is not None)


def test_the_curve_of_another_run_is_not_gone_on_with(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two inputs with other checkpoints and one learning curve, in one folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(data / "train", "train")
    write_input(tmp_path, tiny_input(training__save_ckpt="one"), "one.json")
    write_input(tmp_path, tiny_input(training__save_ckpt="two", training__seed=9), "two.json")
    inputs = Path("one.json").read_text(), Path("two.json").read_text()
    assert dp("train", "one.json") == dp("train", "two.json") == 0
    assert (Path("one.json").read_text(), Path("two.json").read_text()) == inputs
    assert Path("two.out.json").exists()
    other = Path("lcurve.out").read_text()
    write_input(tmp_path, tiny_input(training__save_ckpt="one", training__numb_steps=14), "one.json")
    assert dp("train", "one.json", "--restart", "one", "-l", "log") == 0
    assert "lcurve.out is of another run than the checkpoint; it is kept as lcurve.out.old-1" in Path("log").read_text()
    assert Path("lcurve.out.old-1").read_text() == other
    assert [int(line.split()[0]) for line in Path("lcurve.out").read_text().splitlines() if line[0] != "#"] == [14]
