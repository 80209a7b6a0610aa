"""Each kind of DeePMD-kit's models in this program's loop: trains, goes on bit for bit, and shows its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, TYPES, kit_input

from lmdb_files import of_set, write_lmdb
from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from lockstep.tasks.deepmd.neighbours import KnownLists
from runs import dp, make_frames


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[KnownLists]:
    """The neighbour lists that runs keep."""
    kept: list[KnownLists] = []
    begin = KnownLists.__init__
    monkeypatch.setattr(KnownLists, "__init__", lambda self, budget: (kept.append(self), begin(self, budget))[1])
    return kept


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_trains_and_finds_neighbours_once_per_frame(
    name: str, folder: Path, lists: list[KnownLists]
) -> None:
    kit_input(name, folder, frames=2, training__numb_steps=4, training__disp_freq=1)
    assert dp("train", "input.json") == 0
    curve = read_lcurve("lcurve.out")
    assert len(curve["step"]) == 4
    assert all(np.isfinite(values).all() for values in curve.values()), curve
    # DPA-4 has a list of its own kind, which it makes in every pass.
    assert [each.found for each in lists] == [0 if name == "dpa4" else 2]


def test_a_restart_goes_on_bit_for_bit(folder: Path) -> None:
    kit_input("dpa1", folder, training__numb_steps=8, training__save_freq=4)
    assert dp("train", "input.json") == 0
    whole = load_checkpoint("model.ckpt-8").tensors
    assert dp("train", "input.json", "--restart", "model.ckpt-4") == 0
    again = load_checkpoint("model.ckpt-8").tensors
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_a_model_is_made_of_the_average_of_the_weights(folder: Path) -> None:
    kit_input("dpa1", folder, training__numb_steps=4, training__enable_ema=True, training__ema_decay=0.5)
    assert dp("train", "input.json") == 0
    checkpoint = load_checkpoint("model.ckpt")
    averages, weights = checkpoint.group("average"), checkpoint.group("model")
    assert all(not torch.equal(averages[name], weights[name]) for name in averages if averages[name].numel())
    assert dp("freeze", "--ema", "-o", "mean.pth") == dp("freeze", "-o", "last.pth") == 0
    mean, last = (torch.jit.load(f"{name}.pth").state_dict() for name in ("mean", "last"))
    name = next(name for name in last if "fitting_net" in name and "layers.0.matrix" in name)
    expected = next(value for key, value in averages.items() if key.endswith(name.removeprefix("model.")))
    torch.testing.assert_close(mean[name], expected)
    assert not torch.equal(mean[name], last[name])


FOUR_STEPS = {"training__numb_steps": 4, "training__save_freq": 4}


def train_on_two(folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "lockstep.cli.main", "train", "input.json", "-o", "two.json"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]


def two_ranks_equal_one(data: dict[str, Any], folder: Path) -> None:
    """Trains four steps on one rank that accumulates two micro-batches, as `data` says, then on two ranks."""
    assert dp("train", "input.json") == 0
    one = load_checkpoint("model.ckpt-4").group("model")
    data["training"] |= {"acc_freq": 1, "save_ckpt": "two.ckpt", "disp_file": "two.out"}
    data["learning_rate"]["scale_by_worker"] = "none"
    (folder / "input.json").write_text(json.dumps(data))
    train_on_two(folder)
    two = load_checkpoint("two.ckpt-4").group("model")
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-9, atol=1e-11)


def test_two_ranks_equal_one_that_accumulates_two(folder: Path) -> None:
    two_ranks_equal_one(kit_input("dpa1", folder, **FOUR_STEPS, training__acc_freq=2), folder)


@pytest.mark.parametrize("size", [1, "mixed:2"])
def test_frames_of_several_sizes_in_lmdb(folder: Path, size: int | str) -> None:
    kit_input("dpa1", folder, training__training_data={"systems": "train.lmdb", "batch_size": size})
    frames = [
        frame
        for types in ((0, 0, 1, 1, 0, 1), (1, 0, 0, 1))
        for frame in of_set(make_frames(2, types, seed=len(types)), types)
    ]
    write_lmdb(folder / "train.lmdb", frames, TYPES)
    assert dp("train", "input.json") == 0
    assert np.isfinite(read_lcurve("lcurve.out")["rmse_f_trn"]).all()


def test_the_log_says_what_trains(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kit_input("dpa2", folder, training__numb_steps=1)
    assert dp("train", "input.json") == 0
    assert "model: DeePMD-kit 3.2.0's DPA-2" in capfd.readouterr().err
