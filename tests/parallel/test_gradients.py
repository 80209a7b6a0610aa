"""Gradient averaging and the agreement of weights, on ranks that are threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_group import on_ranks

from lockstep.gradbuffer import buffer_of
from lockstep.parallel.agreement import DisagreementError, check_same_weights, share_weights
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group

SOLO = SoloGroup(WorkerContext("alone", 0, 1, 0, 1))


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()


def gradients(net: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any))
def test_the_average_is_that_of_all_frames_however_they_are_dealt(shares: list[int]) -> None:
    frames = torch.randn(sum(shares), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    reference = network()
    reference(frames).square().mean().backward()
    starts = [sum(shares[:r]) for r in range(len(shares))]
    nets = [network() for _ in shares]

    def work(group: Group) -> torch.Tensor:
        averager = GradientAverager(nets[group.rank].parameters(), group, extras=2)
        averager.zero()
        own = frames[starts[group.rank] : starts[group.rank] + shares[group.rank]]
        if len(own):
            nets[group.rank](own).square().sum().backward()
        return averager.average(len(own), torch.tensor([len(own), 1.0]))

    for net, extras in zip(nets, on_ranks(len(shares), work), strict=True):
        assert extras.tolist() == [len(frames), len(shares)]
        for mine, wanted in zip(gradients(net), gradients(reference), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-14)


def test_gradients_end_as_views_of_one_buffer() -> None:
    net = network()
    averager = GradientAverager(net.parameters(), SOLO)
    samples = torch.ones(2, 3, dtype=torch.float64)
    for _ in range(2):
        averager.zero()
        net(samples).sum().backward()
        once = gradients(net)
        net(samples).sum().backward()
        averager.average(1.0)
        pointers = [p.grad.data_ptr() for p in net.parameters() if p.grad is not None]
        assert [pointer - pointers[0] for pointer in pointers] == [0, 15 * 8, 20 * 8, 25 * 8]
        for twice, single in zip(gradients(net), once, strict=True):
            torch.testing.assert_close(twice, 2 * single)


def test_what_is_added_to_the_buffer_and_what_autograd_has_are_one_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    averager = GradientAverager([weight], SOLO)
    for _ in range(2):
        averager.zero()
        (2.0 * weight).sum().backward()
        buffer = buffer_of(weight)
        assert buffer is not None
        buffer.add(torch.full_like(weight, 5.0))
        averager.average(1.0)
        assert weight.grad.tolist() == [7.0] * 3


def test_gradients_of_several_micro_batches_are_averaged() -> None:
    net, once = network(), network()
    samples = torch.randn(4, 3, dtype=torch.float64)
    averager = GradientAverager(net.parameters(), SOLO)
    averager.zero()
    for _ in range(3):
        net(samples).sum().backward()
    averager.average(3)
    once(samples).sum().backward()
    for mine, wanted in zip(gradients(net), gradients(once), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("size", [1, 3])
def test_precisions_may_be_mixed_and_scalars_stay_exact(size: int) -> None:
    def work(group: Group) -> tuple[list[torch.Tensor], float]:
        parameters = [
            torch.nn.Parameter(torch.zeros(2, dtype=d)) for d in (torch.float32, torch.float64, torch.float32)
        ]
        averager = GradientAverager(parameters, group, extras=1)
        averager.zero()
        sum(p.sum() * (k + 1 + group.rank) for k, p in enumerate(parameters)).backward()
        extras = averager.average(1, torch.tensor([1.0 + 2.0**-40], dtype=torch.float64))
        return [p.grad for p in parameters], float(extras[0])

    for grads, extra in on_ranks(size, work):
        mean = (size - 1) / 2
        assert [g.tolist() for g in grads] == [[k + 1 + mean] * 2 for k in range(3)]
        assert [g.dtype for g in grads] == [torch.float32, torch.float64, torch.float32]
        assert extra == size * (1.0 + 2.0**-40)


def test_gradients_may_travel_as_float32_and_scalars_stay_exact() -> None:
    def work(group: Group) -> tuple[torch.Tensor, float]:
        weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float64))
        averager = GradientAverager([weight], group, extras=1, narrow=True)
        averager.zero()
        factors = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(group.rank))
        (weight * factors).sum().backward()
        extras = averager.average(1, torch.tensor([1.0 + 2.0**-40], dtype=torch.float64))
        assert weight.grad is not None
        return weight.grad, float(extras[0])

    wanted = (
        sum(torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(r)) for r in range(3)) / 3
    )
    found = on_ranks(3, work)
    for gradient, extra in found:
        assert gradient.dtype == torch.float64
        assert torch.equal(gradient, found[0][0])
        assert 1e-9 < float(((gradient - wanted) / wanted).abs().max()) < 3e-7
        assert extra == 3 * (1.0 + 2.0**-40)


def test_gradients_that_are_missing_or_replaced_count_as_they_are() -> None:
    net = network()
    averager = GradientAverager(net.parameters(), SOLO)
    averager.zero()
    net.zero_grad(set_to_none=True)
    first, *others = net.parameters()
    first.grad = torch.full_like(first, 7.0)
    averager.average(1.0)
    assert first.grad is not None
    assert bool((first.grad == 7).all())
    assert all(p.grad is not None and bool((p.grad == 0).all()) for p in others)


def test_a_gradient_that_is_not_finite_is_seen_by_all_ranks() -> None:
    def work(group: Group) -> bool:
        net = network()
        averager = GradientAverager(net.parameters(), group, extras=1)
        averager.zero()
        loss = net(torch.full((1, 3), float("nan") if group.rank == 1 else 1.0, dtype=torch.float64)).sum()
        loss.backward()
        return bool(averager.average(1.0, loss.detach()).isfinite().all())

    assert on_ranks(2, work) == [False, False]


def test_frozen_parameters_are_left_alone() -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    GradientAverager(net.parameters(), SOLO).zero()
    assert net[0].weight.grad is None


def test_weights_of_rank_0_are_given_to_all() -> None:
    def work(group: Group) -> str:
        net = network(seed=group.rank)
        share_weights(net.parameters(), group)
        return check_same_weights(net.parameters(), group)

    assert len(set(on_ranks(3, work))) == 1


@pytest.mark.parametrize(("seeds", "named"), [((1, 1, 2), "rank 2"), ((2, 1, 1), "rank 0"), ((1, 2), "rank 1")])
def test_ranks_whose_weights_differ_are_named(seeds: tuple[int, ...], named: str) -> None:
    def work(group: Group) -> None:
        # Threads share torch's generator, so the weights are set rather than drawn.
        weights = [torch.full((2,), float(seeds[group.rank]))]
        group.progress.at(7, "saving")
        with pytest.raises(DisagreementError, match=f"differ on {named} from .* in step 7"):
            check_same_weights(weights, group)

    on_ranks(len(seeds), work)


def test_one_flipped_bit_is_a_difference() -> None:
    def work(group: Group) -> None:
        weights = torch.ones(1000, dtype=torch.float64)
        weights[500] += group.rank * torch.finfo(torch.float64).eps
        with pytest.raises(DisagreementError):
            check_same_weights([weights], group)

    on_ranks(2, work)
