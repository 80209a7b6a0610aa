"""The life of a model by the command line alone: train, go on, freeze, test, show, draw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_samples import write_system

from potentials import DESCRIPTOR, FITTING, random_potential


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    teacher = random_potential(seed=9)
    write_system(tmp_path / "data" / "a", teacher, count=4)
    write_system(tmp_path / "data" / "b", teacher, count=2, seed=40)
    config = {
        "model": {"type_map": ["O", "H"], "descriptor": DESCRIPTOR, "fitting_net": FITTING},
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-5},
        "loss": {"start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
        "training": {
            "training_data": {"systems": ["data/a"], "batch_size": 1},
            "validation_data": {"systems": ["data/b"], "batch_size": 1},
            "numb_steps": 4,
            "disp_freq": 1,
            "save_freq": 2,
            "seed": 1,
        },
    }
    (tmp_path / "input.json").write_text(json.dumps(config))
    return tmp_path


def test_a_model_is_trained_and_used(dp: Callable, run_folder: Path) -> None:
    assert dp("train", "input.json").code == 0
    assert dp("freeze", "-o", "model.dp").code == 0
    assert dp("show", "model.dp", "size").code == 0
    by_model = dp("test", "-m", "model.dp", "-s", "data")
    by_checkpoint = dp("test", "-m", "model.ckpt-4", "-s", "data")
    assert by_model.number("Force  RMSE") == by_checkpoint.number("Force  RMSE")
    assert dp("plot", ".").code == 0
    assert (run_folder / "lcurve.png").stat().st_size > 10_000


def test_the_data_of_an_input_file_are_tested(dp: Callable, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dp("train", "input.json")
    dp("freeze", "-o", "model.dp")
    elsewhere = run_folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    training = dp("test", "-m", "../model.dp", "--train-data", "../input.json")
    validation = dp("test", "-m", "../model.dp", "--valid-data", "../input.json")
    assert "# number of test data : 4 " in training.err
    assert "# number of test data : 2 " in validation.err


def test_an_input_file_without_validation_data(dp: Callable, run_folder: Path) -> None:
    config = json.loads((run_folder / "input.json").read_text())
    del config["training"]["validation_data"]
    (run_folder / "input.json").write_text(json.dumps(config))
    dp("train", "input.json")
    result = dp("test", "-m", ".", "--valid-data", "input.json")
    assert result.code == 2
    assert "training.validation_data" in result.err
