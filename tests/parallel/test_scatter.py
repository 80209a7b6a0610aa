"""Ranks of one node that share the optimizer's work in memory: the weights and the state of one rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from thread_group import on_ranks

from lockstep.config.optimizer import AdamConfig, AdamWConfig
from lockstep.errors import CheckpointError
from lockstep.optim.optimizer import Optimizer, make_optimizer, node_memory
from lockstep.parallel import scatter
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines.shared_sum import FOLDER
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group

SOLO = SoloGroup(WorkerContext("alone", 0, 1, 0, 1))
SHAPES = {"matrix": (7, 5), "bias": (5,), "last": (5, 1), "one": (1,)}
STEPS = 4
Answer = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SHAPES.items()}
    return {name: torch.nn.Parameter(weight.to(dtype)) for name, weight in drawn.items()}


def train(
    group: Group, kind: str, batches: list[range], dtype: torch.dtype = torch.float64, state: Answer | None = None
) -> Answer:
    """Weights and state after some steps on made-up gradients, one for each micro-batch."""
    weights, config = parameters(dtype), AdamConfig() if kind == "Adam" else AdamWConfig(weight_decay=0.1)
    memory = node_memory(weights.items(), config, group)
    assert (memory is None) == (group.size == 1)
    optimizer: Optimizer = make_optimizer(weights.items(), config, group, 0, memory)
    if state is not None:
        for name, weight in weights.items():
            weight.data.copy_(state[0][name])
        optimizer.load(state[1])
    averager = GradientAverager(weights.values(), group, extras=1, memory=memory)
    for batch in batches:
        averager.zero()
        own = [number for number in batch if number % group.size == group.rank]
        for number in own:
            sum(((k + 1.0) * w.sin() * (number % 5 - 1)).sum() for k, w in enumerate(weights.values())).backward()
        extras = averager.average(float(len(own)), torch.tensor([float(len(own))]))
        assert extras.tolist() == [len(batch)]
        assert bool(averager.total.isfinite())
        optimizer.step(0.01)
    return {name: weight.detach().clone() for name, weight in weights.items()}, optimizer.tensors()


def alike(found: Answer, expected: Answer, tolerance: float) -> None:
    for mine, wanted in zip(found, expected, strict=True):
        assert mine.keys() == wanted.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, wanted[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_ranks_that_share_memory_train_as_one(kind: str, ranks: int, dtype: torch.dtype, tolerance: float) -> None:
    """Whatever the bounds of parameters, and with an uneven number of micro-batches."""
    batches = [range(7 * step, 7 * step + 7) for step in range(STEPS)]
    alone = train(SOLO, kind, batches, dtype)
    for found in on_ranks(ranks, lambda group: train(group, kind, batches, dtype)):
        alike(found, alone, tolerance)


def test_state_goes_from_any_number_of_ranks_to_any_other() -> None:
    batches = [range(6 * step, 6 * step + 6) for step in range(2 * STEPS)]
    alone = train(SOLO, "Adam", batches)
    middle = on_ranks(3, lambda group: train(group, "Adam", batches[:STEPS]))[0]
    alike(train(SOLO, "Adam", batches[STEPS:], state=middle), alone, 1e-13)
    for found in on_ranks(2, lambda group: train(group, "Adam", batches[STEPS:], state=middle)):
        alike(found, alone, 1e-13)


def test_state_that_does_not_belong_is_refused_by_all() -> None:
    def work(group: Group) -> str:
        weights = parameters()
        memory = node_memory(weights.items(), AdamConfig(), group)
        optimizer = make_optimizer(weights.items(), AdamConfig(), group, 0, memory)
        with pytest.raises(CheckpointError, match="other"):
            optimizer.load({"other.step": torch.zeros(())})
        with pytest.raises(CheckpointError, match=r"\(3,\)"):
            optimizer.load({"bias.exp_avg": torch.zeros(3)})
        assert optimizer.tensors() == {}
        return "refused"

    assert on_ranks(2, work) == ["refused"] * 2


def test_a_gradient_that_is_not_finite_is_seen_by_all_before_weights_are_touched() -> None:
    def work(group: Group) -> tuple[bool, bool]:
        weights = parameters()
        memory = node_memory(weights.items(), AdamConfig(), group)
        averager = GradientAverager(weights.values(), group, memory=memory)
        averager.zero()
        (weights["bias"].sum() * (float("nan") if group.rank else 1.0)).backward()
        averager.average(1.0)
        untouched = all(torch.equal(weights[name], weight) for name, weight in parameters().items())
        return bool(averager.total.isfinite()), untouched

    assert on_ranks(2, work) == [(False, True)] * 2


def test_memory_is_not_shared_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(group: Group, weights: dict[str, torch.nn.Parameter]) -> bool:
        return node_memory(weights.items(), AdamConfig(), group) is not None

    mixed = {**parameters(), "float": torch.nn.Parameter(torch.ones(3))}
    assert on_ranks(2, lambda group: shared(group, mixed)) == [False, False]
    assert on_ranks(2, lambda group: shared(group, parameters())) == [True, True]
    with monkeypatch.context() as patch:
        names = iter(["node0", "node1"])
        patch.setattr(scatter, "this_node", lambda: next(names))
        assert on_ranks(2, lambda group: shared(group, parameters())) == [False, False]
    monkeypatch.setattr("lockstep.parallel.engines.shared_sum.FOLDER", Path("/nowhere"))
    assert on_ranks(2, lambda group: shared(group, parameters())) == [False, False]


def test_nothing_is_left_behind() -> None:
    def work(group: Group) -> list[str]:
        memory = node_memory(parameters().items(), AdamConfig(), group)
        assert memory is not None
        group.barrier()
        return [path.name for path in FOLDER.glob("lockstep-*")]

    assert on_ranks(2, work) == [[], []]
