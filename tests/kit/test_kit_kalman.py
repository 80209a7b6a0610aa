"""The Kalman filter, beside DeePMD-kit's own: the same weights, on one rank and on two, and over a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import kit_input
from test_kit_arithmetic import kit_trainer
from test_kit_runs import two_ranks_equal_one

from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from lockstep.optim.kalman import KalmanFilter
from lockstep.tasks.deepmd.signals import ATOMS, SIGNALS
from runs import dp

STEPS = 4
FILTER = {"type": "LKF", "kf_blocksize": 64, "kf_start_pref_f": 2.0, "kf_limit_pref_e": 0.5}
SHORT = {"training__numb_steps": STEPS, "training__save_freq": 2, "training__disp_freq": 1}


def filtered_input(name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    data = kit_input(name, folder, **{**SHORT, **changes})
    data["optimizer"] = FILTER
    (folder / "input.json").write_text(json.dumps(data))
    return data


@pytest.mark.parametrize("name", ["dpa1", "se_e3"])
def test_the_weights_are_those_of_deepmd_kits_own_trainer(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[np.ndarray] = []
    ours: list[list[torch.nn.Parameter]] = []
    draw, begin = np.random.Generator.choice, KalmanFilter.__init__

    def recorded(generator: np.random.Generator, a: Any, size: Any = None, *more: Any) -> Any:
        found = draw(generator, a, size, *more)
        if size == (SIGNALS - 1, ATOMS):
            groups.append(found)
        return found

    class Recording(np.random.Generator):
        choice = recorded

    monkeypatch.setattr(
        "lockstep.tasks.deepmd.signals.np.random.default_rng", lambda seeds: Recording(np.random.PCG64(seeds))
    )
    monkeypatch.setattr(
        KalmanFilter,
        "__init__",
        lambda self, kept, *more: (ours.append(list(kept.values())), begin(self, kept, *more))[1],
    )
    data = filtered_input(name, folder)
    assert dp("train", "input.json") == 0
    monkeypatch.undo()
    steps = groups[:: SIGNALS - 1]
    assert len(steps) == STEPS

    (folder / "there").mkdir()
    monkeypatch.chdir(folder / "there")
    (folder / "there" / "train").symlink_to(folder / "train")
    trainer = kit_trainer(data, STEPS, monkeypatch)
    started = [parameter.detach().clone() for parameter in trainer.wrapper.parameters()]
    from deepmd.pt.optimizer import KFOptimizerWrapper

    # DeePMD-kit sorts atoms by type.
    places = np.argsort(np.argsort(np.loadtxt("train/type.raw"), kind="stable"))
    left = iter([places[group] for group in steps])
    monkeypatch.setattr(KFOptimizerWrapper, "_KFOptimizerWrapper__sample", lambda *_: next(left))
    trainer.run()
    theirs = list(trainer.wrapper.parameters())
    assert len(ours[0]) == len(theirs)
    for here, there in zip(ours[0], theirs, strict=True):
        torch.testing.assert_close(here.detach(), there.detach(), rtol=1e-8, atol=1e-8)
    assert any((first != last).any() for first, last in zip(started, theirs, strict=True))


def test_a_restart_goes_on_bit_for_bit(folder: Path) -> None:
    filtered_input("dpa1", folder)
    assert dp("train", "input.json") == 0
    whole = load_checkpoint("model.ckpt-4").tensors
    assert dp("train", "input.json", "--restart", "model.ckpt-2") == 0
    again = load_checkpoint("model.ckpt-4").tensors
    assert any("covariance" in key for key in whole)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_the_displayed_loss_is_weighed_by_the_present_learning_rate(folder: Path) -> None:
    data = filtered_input("dpa1", folder)
    assert dp("train", "input.json") == 0
    curve, loss = read_lcurve("lcurve.out"), data["loss"]
    part = curve["lr"] / data["learning_rate"]["start_lr"]
    assert part[-1] < 0.5
    weights = {key: loss[f"start_pref_{key}"] * part + loss[f"limit_pref_{key}"] * (1 - part) for key in "ef"}
    atoms = len(np.loadtxt("train/type.raw", ndmin=1))
    expected = weights["e"] * atoms * curve["rmse_e_trn"] ** 2 + weights["f"] * curve["rmse_f_trn"] ** 2
    np.testing.assert_allclose(curve["rmse_trn"], np.sqrt(expected), rtol=0.02)


def test_two_ranks_equal_one_that_accumulates_two(folder: Path) -> None:
    two_ranks_equal_one(filtered_input("dpa1", folder, training__acc_freq=2), folder)


def test_a_filter_too_large_for_the_memory_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    filtered_input("dpa1", folder)
    monkeypatch.setattr("lockstep.tasks.deepmd.optimizers.free_memory", lambda ranks: 1000)
    assert dp("train", "input.json") == 2
    assert "optimizer.kf_blocksize = 64: the covariances take" in capsys.readouterr().err
    assert not Path("lcurve.out").exists()


@pytest.mark.parametrize(
    ("name", "section", "change", "words"),
    [
        ("dpa1", "training", {"gradient_max_norm": 1.0}, "training.gradient_max_norm = 1.0: a Kalman filter needs"),
        ("dpa1", "training", {"zero_stage": 1}, "training.zero_stage = 1: LKF keeps its whole state on every rank"),
        ("dipole", "training", {}, "optimizer.type = 'LKF': LKF filters energies and forces"),
        ("dpa1", "optimizer", {"kf_blocksize": 0}, "optimizer.kf_blocksize = 0"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused(
    name: str, section: str, change: dict[str, Any], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = filtered_input(name, folder)
    data[section] = {**data[section], **change}
    (folder / "input.json").write_text(json.dumps(data))
    assert dp("train", "input.json") == 2
    assert words in capsys.readouterr().err
