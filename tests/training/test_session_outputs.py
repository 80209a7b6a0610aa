"""What a run writes, when, and under which names: seen from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from runs import dp, folder_state, tiny_input, tiny_system, write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, the current one."""
    tiny_system(tmp_path / "train", n_frames=6)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder: Path, *arguments: str, **changes: Any) -> None:
    write_input(folder, tiny_input(**changes))
    assert dp("train", "input.json", *arguments) == 0


def steps_of(folder: Path, pattern: str = "model.ckpt-*.safetensors") -> list[int]:
    return sorted(int(path.name.split("-")[-1].split(".")[0]) for path in folder.glob(pattern))


def test_rows_come_at_the_first_step_and_every_disp_freq(folder: Path) -> None:
    train(folder, training__numb_steps=11, training__disp_freq=3)
    assert read_lcurve("lcurve.out")["step"].tolist() == [1, 3, 6, 9]


def test_epochs_become_steps(folder: Path) -> None:
    """Systems of 6 and 5 frames, batches of 1 and 2: 6 + 3 micro-batches a pass, so 1.5 epochs are 13.5 steps."""
    tiny_system(folder / "other", n_frames=5, seed=4)
    data = {"systems": ["train", "other"], "batch_size": [1, 2]}
    changes = {"training__numb_steps": None, "training__numb_epoch": 1.5, "training__training_data": data}
    train(folder, **changes)
    assert load_checkpoint("model.ckpt").step == 14
    train(folder, training__acc_freq=2, **changes)
    assert load_checkpoint("model.ckpt").step == 7


def test_an_epoch_by_uneven_probabilities_is_the_longest_pass(folder: Path) -> None:
    """The first system has 6 micro-batches and a third of the draws: its pass takes 18 of them."""
    tiny_system(folder / "other", n_frames=5, seed=4)
    data = {"systems": ["train", "other"], "batch_size": 1, "sys_probs": [1 / 3, 2 / 3]}
    train(folder, training__numb_steps=None, training__numb_epoch=1, training__training_data=data)
    assert load_checkpoint("model.ckpt").step == 18


def test_checkpoints_come_every_save_freq_and_at_the_end(folder: Path) -> None:
    train(folder, training__numb_steps=11, training__save_freq=4)
    assert steps_of(folder) == [4, 8, 11]
    assert (folder / "checkpoint").read_text() == "model.ckpt-11.safetensors"


def test_oldest_checkpoints_are_removed(folder: Path) -> None:
    train(folder, training__save_freq=2, training__max_ckpt_keep=3)
    assert steps_of(folder) == [8, 10, 12]


def test_save_ckpt_may_name_a_folder(folder: Path) -> None:
    train(folder, training__save_ckpt="deep/er/potential")
    assert steps_of(folder, "deep/er/potential-*.safetensors") == [4, 8, 12]
    assert (folder / "checkpoint").read_text() == "deep/er/potential-12.safetensors"
    assert load_checkpoint("deep/er/potential").step == 12
    train(folder, "--restart", "deep/er/potential", training__save_ckpt="deep/er/potential", training__numb_steps=14)
    assert (folder / "checkpoint").read_text() == "deep/er/potential-14.safetensors"


def test_save_dir_takes_the_checkpoints(folder: Path) -> None:
    train(folder, training__save_dir="kept")
    assert steps_of(folder, "kept/model.ckpt-*.safetensors") == [4, 8, 12]
    assert load_checkpoint("model.ckpt").step == 12


def test_no_learning_curve_without_disp_training(folder: Path) -> None:
    train(folder, training__disp_training=False)
    assert not (folder / "lcurve.out").exists()
    assert steps_of(folder) == [4, 8, 12]


def test_disp_file_may_lie_in_a_new_folder(folder: Path) -> None:
    train(folder, training__disp_file="curves/a.out")
    assert read_lcurve("curves/a.out")["step"][-1] == 12


TIME_LINE = re.compile(r"batch {2,}(\d+) training time \d+\.\d\d s, testing time \d+\.\d\d s")


def test_time_training_writes_its_lines(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder, training__disp_freq=5)
    assert TIME_LINE.findall(capfd.readouterr().err) == ["1", "5", "10"]
    train(folder, training__disp_freq=5, training__time_training=False)
    assert not TIME_LINE.findall(capfd.readouterr().err)


def test_the_time_left_is_not_told_by_the_step_that_compiles(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder, training__disp_freq=5)
    first, *others = [line for line in capfd.readouterr().err.splitlines() if "training time" in line]
    assert "eta" not in first
    assert all("eta = 0:00:0" in line for line in others)
    train(folder, "--restart", "model.ckpt-4", training__disp_freq=1)
    first, *others = [line for line in capfd.readouterr().err.splitlines() if "training time" in line]
    assert "batch       5" in first
    assert "eta" not in first
    assert all("eta = 0:00:0" in line for line in others)


def test_validation_columns(folder: Path) -> None:
    tiny_system(folder / "valid", n_frames=3, seed=7)
    train(folder, training__validation_data={"systems": ["valid"], "batch_size": 1, "numb_btch": 3})
    curve = read_lcurve("lcurve.out")
    assert {"rmse_val", "rmse_trn", "rmse_e_val", "rmse_e_trn", "rmse_f_val", "rmse_f_trn", "lr"} < set(curve)


def test_validation_errors_are_those_of_dp_test(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All frames of the validation system in each row: the last row must tell what `dp test` finds."""
    tiny_system(folder / "valid", n_frames=3, seed=7)
    train(folder, training__validation_data={"systems": ["valid"], "batch_size": 1, "numb_btch": 3})
    capfd.readouterr()
    assert dp("test", "-m", "model.ckpt", "-s", "valid", "-n", "0") == 0
    log = capfd.readouterr().err
    energy = float(re.search(r"Energy RMSE/Natoms *: *(\S+)", log)[1])
    force = float(re.search(r"Force +RMSE *: *(\S+)", log)[1])
    # lcurve.out has the errors after a step's update, in three digits.
    curve = read_lcurve("lcurve.out")
    assert curve["rmse_e_val"][-1] == pytest.approx(energy, rel=6e-3)
    assert curve["rmse_f_val"][-1] == pytest.approx(force, rel=6e-3)


def same_end(one: Path, other: Path) -> None:
    a, b = load_checkpoint(one), load_checkpoint(other)
    assert a.step == b.step
    for name, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[name]), name


def test_out_json_gives_the_same_run(folder: Path) -> None:
    train(folder, model__descriptor__sel="auto")
    (folder / "out.json").rename(folder / "again.json")
    assert json.loads((folder / "again.json").read_text())["model"]["descriptor"]["sel"] == [8, 8]
    assert dp("train", "again.json") == 0
    same_end(folder / "previous-1" / "model.ckpt-12.safetensors", folder / "model.ckpt")
    assert (folder / "out.json").read_bytes() == (folder / "again.json").read_bytes()


def test_yaml_gives_the_same_run(folder: Path) -> None:
    train(folder)
    (folder / "input.yaml").write_text(yaml.safe_dump(tiny_input()))
    assert dp("train", "input.yaml") == 0
    same_end(folder / "previous-1" / "model.ckpt-12.safetensors", folder / "model.ckpt")


def test_output_option_names_the_input_with_defaults(folder: Path) -> None:
    train(folder, "-o", "full.json")
    assert (folder / "full.json").is_file()
    assert not (folder / "out.json").exists()


def test_an_earlier_run_is_moved_away_whole(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder)
    first = {name: value for name, value in folder_state(folder).items() if not name.startswith(("train", "input"))}
    train(folder, model__descriptor__seed=5)
    train(folder, model__descriptor__seed=6)
    state = folder_state(folder)
    assert {name: state[f"previous-1/{name}"] for name in first} == first
    assert state["previous-2/model.ckpt-12.safetensors"] != first["model.ckpt-12.safetensors"]
    assert "moved to previous-2" in capfd.readouterr().err
    assert load_checkpoint("previous-1").step == 12


def test_files_in_several_folders_are_moved_away_too(folder: Path) -> None:
    changes = {"training__save_ckpt": "a/m", "training__disp_file": "b/m", "training__numb_steps": 4}
    train(folder, **changes)
    curve = (folder / "b" / "m").read_bytes()
    weights = (folder / "a" / "m-4.safetensors").read_bytes()
    train(folder, **changes, model__descriptor__seed=5)
    kept = [path.read_bytes() for path in folder.rglob("previous-*/*") if path.is_file()]
    assert curve in kept
    assert weights in kept


def test_log_file_and_levels(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder, "-l", "logs/train.log")
    text = (folder / "logs" / "train.log").read_text()
    assert "finished training" in text
    assert "Batch      12" in text
    assert "finished training" in capfd.readouterr().err
    train(folder, "-v", "ERROR")
    assert capfd.readouterr().err == ""
    train(folder, "-v", "1")
    warned = capfd.readouterr().err
    assert "previous-2" in warned
    assert "INFO" not in warned


def test_skip_neighbor_stat_looks_at_the_statistics_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(folder, "--skip-neighbor-stat", model__data_stat_nbatch=2)
    assert "max nbor size" not in capfd.readouterr().err
    assert load_checkpoint("model.ckpt").step == 12


def test_stat_file_spares_the_second_run_the_survey(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.tasks.energy import statfile

    for name in ("stat", "stat.hdf5"):
        train(folder, training__stat_file=name)
        first = load_checkpoint("model.ckpt")
        with monkeypatch.context() as patch:
            patch.setattr(statfile, "run_survey", lambda *a, **k: pytest.fail("the data were surveyed again"))
            train(folder, training__stat_file=name, training__stat_file_mode="read")
        for key, tensor in load_checkpoint("model.ckpt").tensors.items():
            assert torch.equal(tensor, first.tensors[key]), key
    assert (folder / "stat").is_dir()
    assert (folder / "stat.hdf5").is_file()


def test_stat_file_knows_changed_data(folder: Path) -> None:
    import numpy as np

    train(folder, training__stat_file="stat.hdf5")
    bias = load_checkpoint("model.ckpt").tensors["model.network.bias"]
    energies = folder / "train" / "set.000" / "energy.npy"
    np.save(energies, np.load(energies) + 100)
    train(folder, training__stat_file="stat.hdf5")
    assert not torch.allclose(load_checkpoint("model.ckpt").tensors["model.network.bias"], bias, atol=1)


def test_tensorboard_events(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(folder, training__tensorboard=True, training__tensorboard_log_dir="events", training__tensorboard_freq=3)
    events = accumulator.EventAccumulator(str(folder / "events"))
    events.Reload()
    assert {"train/rmse", "train/rmse_e", "train/rmse_f", "train/lr"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/rmse_f")] == [1, 3, 6, 9, 12]
    rows = read_lcurve("lcurve.out")
    shown = dict(zip(rows["step"].tolist(), rows["rmse_f_trn"].tolist(), strict=True))
    for event in events.Scalars("train/rmse_f"):
        if event.step in shown:
            assert event.value == pytest.approx(shown[event.step], rel=6e-3)
