"""The Kalman filter: what it estimates is what least squares would, and its blocks hold every weight once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from lockstep.errors import CheckpointError
from lockstep.optim.kalman import KalmanFilter, blocks_of


def test_without_forgetting_it_solves_regularised_least_squares():
    """One block, memory one: after all measurements the estimate is that of ridge regression from the first one."""
    draw = torch.Generator().manual_seed(3)
    rows = torch.randn(30, 5, generator=draw, dtype=torch.float64)
    wanted = torch.randn(30, generator=draw, dtype=torch.float64)
    weights = Parameter(torch.zeros(5, dtype=torch.float64))
    estimate = KalmanFilter({"w": weights}, block_size=8, memory=1.0, growth=1.0)
    for row, value in zip(rows, wanted, strict=True):
        weights.grad = row.clone()
        estimate.step(value - row @ weights.detach())
    ridge = torch.linalg.solve(rows.T @ rows + torch.eye(5, dtype=torch.float64), rows.T @ wanted)
    torch.testing.assert_close(weights.detach(), ridge, rtol=1e-10, atol=1e-12)


def test_a_parameter_without_a_gradient_stays():
    moved, still = (Parameter(torch.ones(2, 3, dtype=torch.float64)) for _ in range(2))
    moved.grad = torch.ones_like(moved)
    KalmanFilter({"moved": moved, "still": still}, block_size=4).step(torch.tensor(0.5))
    assert (moved != 1).all()
    assert (still == 1).all()


def test_the_state_goes_on_bit_for_bit():
    draw = torch.Generator().manual_seed(1)
    gradients = [torch.randn(4, 3, generator=draw, dtype=torch.float64) for _ in range(6)]
    first, second = (Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))

    def run(weights: Parameter, estimate: KalmanFilter, steps: slice) -> None:
        for gradient in gradients[steps]:
            weights.grad = gradient
            estimate.step(torch.tensor(0.1, dtype=torch.float64))

    whole = KalmanFilter({"w": first}, block_size=5)
    run(first, whole, slice(0, 3))
    saved = {name: tensor.clone() for name, tensor in whole.tensors().items()}
    second.data.copy_(first.data)
    again = KalmanFilter({"w": second}, block_size=5)
    again.load(saved)
    run(first, whole, slice(3, 6))
    run(second, again, slice(3, 6))
    assert torch.equal(first, second)


def test_the_state_of_other_blocks_is_refused():
    weights = Parameter(torch.ones(6))
    state = KalmanFilter({"w": weights}, block_size=3).tensors()
    with pytest.raises(CheckpointError, match="blocks like this one"):
        KalmanFilter({"w": weights}, block_size=2).load(state)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 50))
def test_blocks_hold_every_weight_once_and_are_no_larger_than_allowed(sizes: list[int], limit: int):
    blocks = list(blocks_of(sizes, limit))
    assert sum(map(sum, blocks)) == sum(sizes)
    assert max(map(sum, blocks)) <= limit
