"""Work that is shared out among the ranks gives what one rank alone would find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from copper import TINY, train_on_threads, write_copper
from thread_group import on_ranks

from lockstep.config import load_input
from lockstep.errors import UserError
from lockstep.geometry import PairCache
from lockstep.parallel.agreement import check_same_setup
from lockstep.parallel.group import Group
from lockstep.tasks import choose_task
from lockstep.tasks.energy.survey import Survey, run_survey
from lockstep.training.data import open_plan
from lockstep.training.loop import Trainer
from lockstep.training.validation import Validator


@pytest.mark.parametrize("ranks", [2, 3])
def test_neighbour_and_data_statistics(ranks: int, tmp_path: Path) -> None:
    config = load_input(write_copper(tmp_path))
    plan = open_plan(config, config.training.training_data, "training", tmp_path, choose_task(config))

    def survey(group: Group) -> Survey:
        return run_survey(plan, config.model, PairCache(1 << 24), group, all_frames=True, workers=1)

    alone, together = on_ranks(1, survey)[0], on_ranks(ranks, survey)
    for found in together:
        assert found.max_count.tolist() == alone.max_count.tolist()
        assert found.min_distance == alone.min_distance
        for own, reference in zip(found.sums(), alone.sums(), strict=True):
            np.testing.assert_allclose(own, reference, rtol=1e-12)


def test_each_rank_looks_at_its_share_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_input(write_copper(tmp_path))
    plan = open_plan(config, config.training.training_data, "training", tmp_path, choose_task(config))
    looked = []
    look_at = Survey.look_at
    monkeypatch.setattr(Survey, "look_at", lambda self, pairs: (looked.append(id(self)), look_at(self, pairs)))
    on_ranks(2, lambda group: run_survey(plan, config.model, PairCache(1 << 24), group, all_frames=True, workers=1))
    counts = [looked.count(one) for one in set(looked)]
    assert sum(counts) == 120
    assert min(counts) >= 40


def test_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five micro-batches on one rank, or dealt to two and to three: the same errors, each micro-batch read once."""
    monkeypatch.chdir(tmp_path)
    data = {**TINY["training"]["validation_data"], "numb_btch": 5}
    file = write_copper(tmp_path, training__validation_data=data, training__numb_steps=1, training__disp_freq=1)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: [], 3: []}
    call = Validator.__call__

    def validate(self: Validator, turn: int, lr: float) -> dict[str, float]:
        errors = call(self, turn, lr)
        found[self.group.size].append(errors)
        return errors

    monkeypatch.setattr(Validator, "__call__", validate)
    # No update, so that the weights are the same whatever the micro-batches of the step.
    monkeypatch.setattr("lockstep.optim.adam.Adam.step", lambda optimizer, lr: None)
    for ranks in found:
        train_on_threads(file, ranks)
    reference = found[1][0]
    for errors in (*found[2], *found[3]):
        assert errors == pytest.approx(reference, rel=1e-12)


@pytest.mark.parametrize(("variable", "expected"), [("", 7.0), ("9", 9.0)])
def test_the_timeout_of_the_input_holds_unless_the_environment_says_otherwise(
    variable: str, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_TIMEOUT", variable)
    limits = set()
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self, n: (limits.add(self.group.progress.limit), step(self, n))[1])
    train_on_threads(write_copper(tmp_path, training__timeout=7, training__numb_steps=1), 2)
    assert limits == {expected}


def test_ranks_with_different_input_are_named() -> None:
    def check(group: Group) -> str:
        with pytest.raises(UserError) as caught:
            check_same_setup({"training data": 1, "input file": 1 if group.rank != 2 else 2}, group)
        return str(caught.value)

    for message in on_ranks(4, check):
        assert "input file" in message
        assert "what rank 2 found differs" in message
