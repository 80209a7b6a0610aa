"""A task that is not this program's own, trained by the real loop, alone and on two ranks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import ROOT, dp, mpirun, run_in, torchrun

import lockstep
from lockstep.checkpoint.find import load_checkpoint
from lockstep.errors import DataError, InputError
from runs import COPPER, tiny_system

LINEAR = Path(__file__).with_name("linear_task.py")
EXAMPLE = ROOT / "examples" / "own_model"
INPUT = {
    "model": {"type_map": ["A", "B"]},
    "learning_rate": {"type": "exp", "start_lr": 0.05, "stop_lr": 0.01, "scale_by_worker": "none"},
    "training": {
        "training_data": {"systems": ["three", "four"], "batch_size": 2},
        "validation_data": {"systems": ["three"], "batch_size": 2, "numb_btch": 2},
        "numb_steps": 12,
        "disp_freq": 3,
        "save_freq": 6,
        "seed": 3,
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_system(tmp_path / "three", types=(0, 0, 1), seed=1)
    tiny_system(tmp_path / "four", types=(0, 1, 1, 1), seed=2)
    (tmp_path / "input.json").write_text(json.dumps(INPUT))
    return tmp_path


def train_linear(folder: Path, launcher: list[str] | None = None, **changes: Any) -> str:
    command = [*(launcher or []), sys.executable, str(LINEAR), json.dumps(changes)]
    outcome = run_in(folder, command)
    assert outcome.code == 0, outcome.text
    return outcome.text


def weights(folder: Path, step: int) -> np.ndarray:
    group = load_checkpoint(folder / f"model.ckpt-{step}").group("model")
    return np.concatenate([tensor.numpy().ravel() for _, tensor in sorted(group.items())])


def curve(folder: Path) -> list[str]:
    return (folder / "lcurve.out").read_text().splitlines()


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_two_ranks_train_it_as_one_that_accumulates_two(folder, launcher):
    text = train_linear(folder, launcher())
    two, rows = weights(folder, 12), curve(folder)
    assert "world size:           2" in text
    assert rows[0].split()[1:6] == ["step", "loss_val", "loss_trn", "mae_energy_val", "mae_energy_trn"]

    train_linear(folder, training={"acc_freq": 2})

    assert np.abs(weights(folder, 12) - two).max() < 1e-12
    assert curve(folder) == rows


def test_a_restart_goes_on_with_the_state_of_the_task(folder):
    train_linear(folder)
    whole, rows = weights(folder, 12), curve(folder)
    (folder / "model.ckpt-12.safetensors").unlink()
    train_linear(folder, restart="model.ckpt-6")

    assert (weights(folder, 12) == whole).all()
    assert load_checkpoint(folder / "model.ckpt-12").info["updates"] == 12
    assert curve(folder) == rows


def test_the_function_says_what_is_wrong_as_exceptions(folder, monkeypatch):
    sys.path.insert(0, str(LINEAR.parent))
    from linear_task import Linear

    for name in ("PMI_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"model\.type_map"):
        lockstep.train({**INPUT, "model": {}}, task=Linear)
    (folder / "four" / "set.000" / "energy.npy").unlink()
    with pytest.raises(DataError, match=r"energy\.npy"):
        lockstep.train("input.json", task=Linear)
    assert not (folder / "lcurve.out").exists()


def test_the_example_trains_on_two_ranks_with_restart_profile_and_report(tmp_path):
    for name in ("train.py", "input.json"):
        shutil.copy(EXAMPLE / name, tmp_path)
    (tmp_path / "data").symlink_to(COPPER)
    assert len((EXAMPLE / "train.py").read_text().splitlines()) < 80
    source = json.loads((EXAMPLE / "input.json").read_text())
    source["training"] |= {"numb_steps": 20, "disp_freq": 5, "save_freq": 10}
    (tmp_path / "input.json").write_text(json.dumps(source))
    command = [*torchrun(), sys.executable, "train.py"]
    outcome = run_in(tmp_path, command)
    assert outcome.code == 0, outcome.text
    rows = curve(tmp_path)

    again = run_in(tmp_path, [*command, "model.ckpt-10"])

    assert again.code == 0, again.text
    assert curve(tmp_path) == rows
    assert len(list(tmp_path.glob("mpi_profile.*"))) >= 2
    report = run_in(tmp_path, dp("report", "."))
    assert report.code == 0, report.text
    first, last = (float(row.split()[4]) for row in (rows[2], rows[-1]))
    assert last < first


def test_scripts_may_train_more_than_once(folder):
    script = folder / "twice.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(LINEAR.parent)!r})\n"
        "import lockstep\nfrom linear_task import Linear\n"
        "first = lockstep.train('input.json', task=Linear)\n"
        "second = lockstep.train('input.json', task=Linear, restart=f'{first.checkpoints}-6', output='other.json')\n"
        "assert second.output.exists() and second.curve.exists()\n"
    )
    for launcher in ([], torchrun(), mpirun()):
        outcome = run_in(folder, [*launcher, sys.executable, str(script)])
        assert outcome.code == 0, outcome.text
