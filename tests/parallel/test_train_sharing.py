"""Optimizers whose work and state the ranks share: the same training, each rank with its part of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from copper import curve, largest_difference, logged, train_on_threads, weights, write_copper
from thread_group import on_ranks

from lockstep.checkpoint.find import load_checkpoint
from lockstep.config.optimizer import AdamConfig, SoapConfig
from lockstep.optim.optimizer import make_optimizer
from lockstep.optim.sharing import assign_owners
from lockstep.parallel.group import Group

SOAP = {"type": "SOAP", "min_side": 8, "frequency": 4, "max_block": 12}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SOAP": {"optimizer": SOAP, "learning_rate__start_lr": 0.001},
    "Adam": {"training__zero_stage": 1},
    "AdamW": {"training__zero_stage": 1, "optimizer": {"type": "AdamW"}},
    "Adam in memory": {},
}


@pytest.fixture(autouse=True)
def _apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of several nodes, unless memory is what a test is about."""
    if "memory" not in request.node.name:
        monkeypatch.setattr("lockstep.optim.optimizer.NodeMemory.of", lambda parameters, group: None)


def test_owners_are_chosen_by_cost() -> None:
    costs = {"large": 100.0, "a": 40.0, "b": 35.0, "c": 30.0, "tiny": 1.0}
    owners = assign_owners(costs, 2)
    loads = [sum(costs[name] for name, owner in owners.items() if owner == rank) for rank in range(2)]
    assert owners.keys() == costs.keys()
    assert sorted(loads) == [101.0, 105.0]
    assert assign_owners(dict(reversed(costs.items())), 2) == owners
    assert set(assign_owners(costs, 16).values()) == {0, 1, 2, 3, 4}


def test_each_rank_holds_the_state_of_its_own_parameters_alone() -> None:
    def work(group: Group) -> tuple[list[int], dict[str, torch.Tensor]]:
        parameters = {f"p{i}": torch.nn.Parameter(torch.ones(20, 20)) for i in range(4)}
        optimizer = make_optimizer(parameters.items(), SoapConfig(), group)
        for _ in range(2):
            for number, parameter in enumerate(parameters.values()):
                parameter.grad = torch.eye(20) * (1 + number)
            optimizer.step(0.1)
        return [len(optimizer._own.tensors())], optimizer.tensors()  # type: ignore[attr-defined]

    results = on_ranks(2, work)
    assert [own for own, _ in results] == [[14], [14]]
    first, second = (state for _, state in results)
    assert len(first) == 28
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_state_of_nobody_is_refused_by_all() -> None:
    def work(group: Group) -> str:
        optimizer = make_optimizer([("p", torch.nn.Parameter(torch.ones(3)))], AdamConfig(), group, zero_stage=1)
        with pytest.raises(Exception, match="other"):
            optimizer.load({"other.step": torch.zeros(())})
        return "refused"

    assert on_ranks(2, work) == ["refused"] * 2


def run(folder: Path, ranks: int, accumulate: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    options = changes.pop("options", {})
    file = write_copper(
        folder,
        learning_rate__scale_by_worker="none",
        training__acc_freq=accumulate,
        **{"training__numb_steps": 24, "training__save_freq": 8, **changes},
    )
    monkeypatch.chdir(folder)
    train_on_threads(file, ranks, **options)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_shared_by_any_number_of_ranks_it_trains_as_one_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts = {1: 6, 2: 3, 3: 2}
    with logged() as messages:
        for ranks, accumulate in layouts.items():
            run(tmp_path / str(ranks), ranks, accumulate, monkeypatch, **OPTIMIZERS[name])
    one = weights(tmp_path / "1")
    for ranks in (2, 3):
        assert largest_difference(one, weights(tmp_path / str(ranks))) < 1e-3 * 0.01
        assert curve(tmp_path / str(ranks)) == pytest.approx(curve(tmp_path / "1"), rel=1e-2)
        assert messages(f"shared among {ranks} ranks")
    states = [load_checkpoint(tmp_path / str(ranks) / "model.ckpt").group("optimizer") for ranks in layouts]
    assert states[0].keys() == states[1].keys() == states[2].keys()


@pytest.mark.parametrize("name", ["SOAP", "Adam", "Adam in memory"])
def test_a_restart_on_another_number_of_ranks_goes_on_with_the_same_state(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole", 2, 3, monkeypatch, **OPTIMIZERS[name])
    for ranks, accumulate in ((1, 6), (3, 2)):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        shutil.copy(tmp_path / "whole" / "model.ckpt-16.safetensors", folder)
        options = {"restart": "model.ckpt-16.safetensors"}
        run(folder, ranks, accumulate, monkeypatch, options=options, **OPTIMIZERS[name])
        assert largest_difference(weights(tmp_path / "whole"), weights(folder)) < 1e-3 * 0.01


@pytest.mark.parametrize("changes", [{}, {"training__gradient_max_norm": 1.0}], ids=["apart", "memory, but clipped"])
def test_without_being_asked_adam_is_not_shared(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged() as messages:
        run(tmp_path, 2, 1, monkeypatch, training__numb_steps=2, **changes)
    assert not messages("shared among")
