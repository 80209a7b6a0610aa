"""The input of a timing run: short, undisturbed, and harmless to the user's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.config import load_input, parse_input
from lockstep.scaling.trial import Dealt, Length, deal, trial_input


def test_nothing_disturbs_the_clock(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    training = trial_input(load_input("input.json"), Length.of(50), Dealt(1))["training"]
    assert training["validation_data"] is None
    assert training["numb_steps"] == training["save_freq"] == 65
    assert not training["tensorboard"]
    assert not training["scale_steps_by_worker"]


def test_paths_hold_in_any_folder_and_none_leads_out_of_the_run(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    training = trial_input(load_input("input.json"), Length.of(50), Dealt(1))["training"]
    assert training["training_data"]["systems"] == [str(inputs / "data")]
    assert training["stat_file"] is None
    assert (training["disp_file"], training["save_ckpt"], training["save_dir"]) == ("lcurve.out", "model.ckpt", None)


def test_the_input_of_a_run_is_a_valid_one_even_with_a_long_warm_up(inputs: Path) -> None:
    data = trial_input(load_input(inputs / "input.json"), Length.of(1), Dealt(3, 2))
    training = parse_input(data).training
    assert (training.acc_freq, training.ranks_per_frame) == (3, 2)


def test_a_weak_test_keeps_the_batch_of_a_worker() -> None:
    assert [deal(workers, 3, strong=False) for workers in (1, 2, 4)] == [Dealt(3)] * 3


def test_a_strong_test_keeps_the_global_batch() -> None:
    """Micro-batches are dealt out first; then workers share them."""
    assert [deal(workers, 1, strong=True) for workers in (1, 2, 4)] == [Dealt(1), Dealt(1, 2), Dealt(1, 4)]
    assert [deal(workers, 4, strong=True) for workers in (2, 3, 8)] == [Dealt(2), Dealt(4, 3), Dealt(1, 2)]
