"""What goes wrong while a run is under way, or around it: other runs, full disks, bad numbers, odd places."""

from __future__ import annotations

import builtins
import fcntl
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from runs import SLOW_STEPS, dp, dp_process, folder_state, tiny_input, tiny_system, write_frames, write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train")
    write_input(tmp_path, tiny_input())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder: Path, *arguments: str, **changes: Any) -> int:
    write_input(folder, tiny_input(**changes))
    return dp("train", "input.json", *arguments)


# ---------------------------------------------------------------- other runs


def test_folder_in_use_by_another_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    holder = (folder / ".model.ckpt.lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    holder.write(json.dumps({"pid": 4711, "host": "elsewhere", "started": "today"}))
    holder.flush()
    before = folder_state(folder)
    assert dp("train", "input.json", "-l", "train.log") == 2
    message = capfd.readouterr().err
    assert "process 4711 on elsewhere" in message
    assert "remedy" in message
    assert {name: value for name, value in folder_state(folder).items() if name != "train.log"} == before


def test_a_failed_run_leaves_the_log_of_the_run_before(folder: Path) -> None:
    assert dp("train", "input.json", "-l", "train.log") == 0
    before = (folder / "train.log").read_text()
    assert train(folder, "-l", "train.log", training__training_data__systems="nowhere") == 2
    after = (folder / "train.log").read_text()
    assert after.startswith(before)
    added = after[len(before) :]
    assert "ERROR" in added, "a batch job's log must tell why it ended"
    assert "nowhere" in added


@pytest.mark.parametrize("option", ["--restart", "--init-model"])
def test_checkpoint_of_another_model(option: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(folder, training__numb_steps=4) == 0
    write_input(folder, tiny_input(model__descriptor__neuron=[4, 6], model__descriptor__rcut=3.5))
    before = folder_state(folder)
    capfd.readouterr()
    assert dp("train", "input.json", option, "model.ckpt") == 2
    message = capfd.readouterr().err
    assert "model.descriptor.neuron: checkpoint has [4, 8], input has [4, 6]" in message
    assert "model.descriptor.rcut: checkpoint has 4.0, input has 3.5" in message
    assert folder_state(folder) == before


def test_frozen_model_of_another_kind(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(folder, training__numb_steps=4) == 0
    assert dp("freeze", "-c", ".", "-o", "old.dp") == 0
    capfd.readouterr()
    assert train(folder, "--init-frz-model", "old.dp", model__fitting_net__neuron=[8, 9]) == 2
    assert "model.fitting_net.neuron" in capfd.readouterr().err


# ---------------------------------------------------------------- while training


def test_labels_that_blow_up_stop_the_run_before_the_update(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The survey cannot see it: a finite label whose square is not. Weights and checkpoints stay as they were."""
    file = folder / "train" / "set.000" / "force.npy"
    forces = np.load(file)
    forces[3, 0] = 1e300
    np.save(file, forces)
    assert train(folder, training__save_freq=1, training__disp_freq=1) == 2
    message = capfd.readouterr().err
    step = int(re.search(r"not a finite number at step (\d+)", message)[1])
    assert "remedy" in message
    assert "Traceback" not in message
    if step > 1:
        last = load_checkpoint("model.ckpt")
        assert last.step == step - 1
        assert all(bool(torch.isfinite(tensor).all()) for tensor in last.tensors.values())


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_update(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The loss of step 7 is a number as any other, but its derivative is not."""
    from lockstep.tasks.energy.task import EnergyTask

    method, calls = EnergyTask.loss, count(1)

    def loss(self: EnergyTask, sample: Any, lr: float) -> Any:
        terms = method(self, sample, lr)
        if next(calls) == 7:
            weight = next(iter(self.module.parameters()))
            return replace(terms, total=terms.total + (0 * weight.sum()).abs().sqrt())
        return terms

    monkeypatch.setattr(EnergyTask, "loss", loss)
    assert train(folder, training__save_freq=1) == 2
    message = capfd.readouterr().err
    assert "the gradient is not a finite number at step 7" in message
    assert "remedy" in message
    last = load_checkpoint("model.ckpt")
    assert last.step == 6
    assert all(bool(torch.isfinite(tensor).all()) for tensor in last.tensors.values())


def test_closed_standard_streams_lead_nowhere(folder: Path) -> None:
    """With `2>&-` files would be opened under the number of the log's descriptor, and written over by it."""
    command = f"exec {sys.executable} -m lockstep.cli.main train input.json -l train.log"
    for closed in ("2>&-", ">&- 2>&- <&-"):
        code = subprocess.run(["bash", "-c", f"{command} {closed}"], check=False, timeout=120).returncode
        assert code == 0, (folder / "train.log").read_text()
        assert "finished training" in (folder / "train.log").read_text()
        assert load_checkpoint("model.ckpt").step == 12
        assert read_lcurve("lcurve.out")["step"][-1] == 12
    write_input(folder, tiny_input(training__numb_steps=0))
    code = subprocess.run(["bash", "-c", f"{command} 2>&-"], check=False, timeout=120).returncode
    assert code == 2


def test_disk_full_while_saving(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A limit on the size of files stands in for the disk: the second checkpoint cannot be written."""
    assert train(folder, training__numb_steps=4) == 0
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / "model.ckpt-4.safetensors").stat().st_size
    # Python ignores the signal already; the write then fails with EFBIG.
    before = {name: value for name, value in folder_state(folder).items() if "ckpt" in name or name == "checkpoint"}
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limit[1]))
        assert train(folder, "--restart", "model.ckpt", training__numb_steps=8) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    message = capfd.readouterr().err
    assert "model.ckpt-8.safetensors" in message
    assert "earlier checkpoints are untouched" in message
    assert "free space" in message
    assert "Traceback" not in message
    state = folder_state(folder)
    assert {name: state[name] for name in before} == before
    assert not [name for name in state if name.endswith(".tmp")]
    assert train(folder, "--restart", "model.ckpt", training__numb_steps=8) == 0


def test_disk_full_while_writing_the_learning_curve(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (folder / "lcurve.out").symlink_to("/dev/full")
    assert train(folder) == 2
    message = capfd.readouterr().err
    assert "learning curve cannot be written" in message
    assert "No space left" in message


def test_tensorboard_that_is_not_installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    (folder / "lcurve.out").write_text("of an earlier run")
    write_input(folder, tiny_input(training__tensorboard=True))
    before = folder_state(folder)
    assert dp("train", "input.json") == 2
    message = capfd.readouterr().err
    assert "training.tensorboard" in message
    assert "pip install" in message
    assert folder_state(folder) == before


def test_broken_validation_frame_is_found_before_the_first_step(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_system(folder / "valid", seed=3)
    file = folder / "valid" / "set.000" / "force.npy"
    forces = np.load(file)
    forces[5, 2] = np.nan
    np.save(file, forces)
    (folder / "lcurve.out").write_text("of an earlier run")
    assert train(folder, training__validation_data={"systems": ["valid"]}) == 2
    assert "valid/set.000/force.npy" in capfd.readouterr().err
    assert (folder / "lcurve.out").read_text() == "of an earlier run"


# ---------------------------------------------------------------- unusual, and allowed


def test_too_few_slots_are_warned_of_and_trained_with(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(folder, model__descriptor__sel=[2, 2]) == 0
    warning = capfd.readouterr().err
    assert "WARNING model.descriptor.sel = [2, 2] is too small for A (2 slots" in warning
    assert "B (2 slots" in warning


def test_no_neighbours_within_the_cutoff(folder: Path) -> None:
    """Atoms are then alone, their energies the bias and what the net makes of an empty environment."""
    frames = {
        "coord": np.arange(18.0).reshape(1, 18).repeat(4, 0) * 10,
        "energy": np.full(4, 3.0),
        "force": np.zeros((4, 18)),
    }
    write_frames(folder / "gas", frames, (0, 0, 1, 1, 0, 1), ("A", "B"))
    assert train(folder, training__training_data__systems="gas", training__numb_steps=40) == 0
    curve = read_lcurve("lcurve.out")
    assert np.isfinite(curve["rmse_e_trn"]).all()
    assert curve["rmse_f_trn"][-1] == 0.0
    assert curve["rmse_e_trn"][-1] < 0.2


@pytest.mark.parametrize("periodic", [True, False])
def test_frames_of_one_atom(periodic: bool, folder: Path) -> None:
    frames = {"coord": np.zeros((3, 3)), "energy": np.ones(3), "force": np.zeros((3, 3))}
    if periodic:
        frames["box"] = np.tile(np.eye(3).reshape(9) * 3.0, (3, 1))
    write_frames(folder / "one", frames, (0,), ("A", "B"))
    assert train(folder, training__training_data__systems="one") == 0
    assert np.isfinite(read_lcurve("lcurve.out")["rmse_trn"]).all()


def test_missing_box_without_nopbc_is_warned_of(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "train" / "set.000" / "box.npy").unlink()
    assert train(folder) == 0
    assert "neither box.npy nor a nopbc file: taken as not periodic (train)" in capfd.readouterr().err


def test_term_without_labels_is_warned_of(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "train" / "set.000" / "virial.npy").unlink()
    assert train(folder, loss__start_pref_v=1.0, loss__limit_pref_v=1.0) == 0
    assert "loss.start_pref_v has no effect: no training system has virial.npy" in capfd.readouterr().err
    assert np.isnan(read_lcurve("lcurve.out")["rmse_v_trn"]).all()


def test_input_with_spaces_and_letters_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mon modèle ☃ 模型"
    tiny_system(folder / "données d'eau")
    monkeypatch.chdir(folder)
    write_input(folder, tiny_input(training__training_data__systems="données d'eau"), "entrée 1.json")
    assert dp("train", "entrée 1.json") == 0
    assert load_checkpoint("model.ckpt").step == 12


def test_running_from_another_folder_explains_where_paths_start(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert dp("train", str(folder / "input.json")) == 2
    message = capfd.readouterr().err
    assert "training.training_data.systems = 'train'" in message
    assert f"it does exist beside the input file, as {folder / 'train'}" in message
    assert folder_state(elsewhere) == {}
    write_input(folder, tiny_input(training__training_data__systems=str(folder / "train")))
    assert dp("train", str(folder / "input.json")) == 0
    assert (elsewhere / "lcurve.out").is_file()
    assert not (folder / "lcurve.out").exists()


def test_reading_the_input_from_a_pipe(folder: Path) -> None:
    read, write = os.pipe()
    os.write(write, json.dumps(tiny_input()).encode())
    os.close(write)
    try:
        assert dp("train", f"/dev/fd/{read}") == 0
    finally:
        os.close(read)


def test_numbers_of_loader_threads_do_not_change_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curves, weights = [], []
    for workers in ("0", "1", "3"):
        monkeypatch.setenv("NUM_WORKERS", workers)
        assert train(folder) == 0
        curves.append((folder / "lcurve.out").read_bytes())
        weights.append(load_checkpoint("model.ckpt").tensors)
    assert curves[0] == curves[1] == curves[2]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
        assert torch.equal(tensor, weights[2][name]), name


def test_nonsense_in_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUM_WORKERS", "many")
    before = folder_state(folder)
    assert dp("train", "input.json") == 2
    assert "NUM_WORKERS = 'many'" in capfd.readouterr().err
    assert folder_state(folder) == before


# ---------------------------------------------------------------- as a process


def wait_for(stream: io.TextIOBase, text: str) -> str:
    """Read lines until one has `text`; returns all of them."""
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def test_ctrl_c_leaves_whole_files_and_one_line(folder: Path) -> None:
    write_input(folder, tiny_input(training__numb_steps=2000))
    process = dp_process("train", "input.json", prelude=SLOW_STEPS)
    assert process.stderr is not None
    wait_for(process.stderr, "Saved model")
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "dp train: interrupted: --restart auto goes on" in rest
    assert "Traceback" not in rest
    assert not list(folder.glob(".*.tmp"))
    assert not list(folder.glob(".*.lock"))
    assert load_checkpoint("model.ckpt").step % 4 == 0
    assert (folder / "lcurve.out").read_text().endswith("\n")


def test_second_run_in_the_folder_names_the_first(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_input(folder, tiny_input(training__numb_steps=2000, training__save_freq=1000))
    process = dp_process("train", "input.json", prelude=SLOW_STEPS)
    assert process.stderr is not None
    wait_for(process.stderr, "Batch       2")
    assert dp("train", "input.json") == 2
    assert f"process {process.pid} on" in capfd.readouterr().err
    assert not list(folder.glob("previous-*"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


NOTHING_WRITABLE = """
import os, tempfile
opened = tempfile.TemporaryFile
def refuse(*a, dir=None, **k):
    if dir:
        raise PermissionError(13, "Permission denied", str(dir))
    return opened(*a, dir=dir, **k)
tempfile.TemporaryFile = refuse  # how numba finds out where compiled code can be kept
os.environ.pop("HOME", None)
"""


def test_no_home_and_nowhere_to_keep_compiled_code(folder: Path) -> None:
    process = dp_process("train", "input.json", prelude=NOTHING_WRITABLE)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_thread_counts_change_nothing_but_rounding(folder: Path) -> None:
    curves = []
    for threads in (1, 2):
        process = dp_process("train", "input.json", env={"OMP_NUM_THREADS": str(threads)})
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert f"num_intra_threads:    {threads}" in errors
        curves.append(read_lcurve("lcurve.out"))
    for name, column in curves[0].items():
        assert np.allclose(column, curves[1][name], rtol=0.02), name
