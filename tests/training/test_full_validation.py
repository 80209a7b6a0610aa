"""Validation on all data, and the checkpoints that are kept for being best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from runs import dp, tiny_input, tiny_system, write_input

VALIDATING = {"full_validation": True, "validation_freq": 2, "full_val_start": 0.3, "validation_metric": "f:rmse"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train")
    tiny_system(tmp_path / "all/valid", n_frames=5, seed=1)
    tiny_system(tmp_path / "all/more", n_frames=3, types=(0, 1, 1, 0), seed=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder: Path, *arguments: str, **validating: Any) -> int:
    validation = {"systems": ["all/valid", "all/more"], "batch_size": 2}
    data = tiny_input(training__validation_data=validation, validating={**VALIDATING, **validating})
    write_input(folder, data)
    return dp("train", "input.json", "-v", "WARNING", *arguments)


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("**/best.ckpt-*.safetensors")}


def test_errors_are_those_that_dp_test_finds(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(folder) == 0
    curve = read_lcurve("val.log")
    assert curve["step"].tolist() == [4, 6, 8, 10, 12]
    capfd.readouterr()
    assert dp("test", "--model", "model.ckpt-12", "--system", "all", "--numb-test", "100") == 0
    told = capfd.readouterr().err
    last = {name: float(values[-1]) for name, values in curve.items()}
    assert np.isnan(last["mae_fm"])
    for name, line in {"rmse_f": "Force  RMSE", "mae_f": "Force  MAE", "mae_e": "Energy MAE/Natoms"}.items():
        found = [row for row in told.splitlines() if line in row][-1]
        assert float(found.partition(":")[2].split()[0]) == pytest.approx(last[name], rel=1e-2)


def test_the_best_are_kept(folder: Path) -> None:
    assert train(folder, max_best_ckpt=2, save_best_dir="best/of") == 0
    curve = read_lcurve("val.log")
    best = curve["step"][np.argsort(curve["rmse_f"], kind="stable")[:2]]
    assert kept(folder) == {f"best.ckpt-{step}.safetensors" for step in best}
    step = int(best[0])
    assert load_checkpoint(f"best/of/best.ckpt-{step}").step == step
    assert dp("freeze", "-c", f"best/of/best.ckpt-{step}", "-o", "best.dp") == 0


def test_a_restart_goes_on_with_the_ranking(folder: Path) -> None:
    assert train(folder) == 0
    whole, files = Path("val.log").read_text(), kept(folder)
    ranking = load_checkpoint("model.ckpt-12").info["best"]
    for path in folder.glob("best.ckpt-*"):
        if int(path.name.split("-")[1].split(".")[0]) > 8:
            path.unlink()
    assert train(folder, "--restart", "model.ckpt-8") == 0
    assert Path("val.log").read_text() == whole
    assert kept(folder) == files
    assert load_checkpoint("model.ckpt-12").info["best"] == ranking


def test_the_run_itself_is_found_beside_the_best(folder: Path) -> None:
    assert train(folder) == 0
    assert kept(folder)
    assert dp("freeze", "-o", "last.dp") == 0
    assert dp("train", "input.json", "--restart", "auto", "-v", "WARNING") == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"validation_metric": "X:MAE"}, "validating.validation_metric"),
        ({"ema_full_validation": True}, "validating.ema_full_validation"),
        ({"validation_freq": 0}, "validating.validation_freq"),
    ],
)
def test_mistakes(folder: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any], words: str) -> None:
    assert train(folder, **change) == 2
    assert words in capfd.readouterr().err


def test_no_validation_data_and_no_such_labels(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_input(folder, tiny_input(validating=VALIDATING))
    assert dp("train", "input.json") == 2
    assert "there are no validation data" in capfd.readouterr().err
    (folder / "all/valid/set.000/virial.npy").unlink()
    (folder / "all/more/set.000/virial.npy").unlink()
    assert train(folder, validation_metric="V:RMSE") == 2
    assert "the validation data have no virial" in capfd.readouterr().err
    assert not Path("lcurve.out").exists()
