"""The damped Adam step: compiled, in torch, and by its formula in float64."""

from __future__ import annotations

import pytest
import torch

from lockstep import team
from lockstep.optim import damped
from lockstep.optim.damped import Damping, direction, move

DAMPING = Damping(beta1=0.9, beta2=0.8, epsilon=1e-3, damping=0.2)


def numbers(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    # Sizes over six orders of magnitude, as in a matrix whose directions differ.
    sizes = torch.exp(14 * torch.rand(shape, generator=generator, dtype=torch.float64) - 7)
    return sizes * torch.randn(shape, generator=generator, dtype=torch.float64)


def steps_of(shape, n_steps, scale=1.0):
    """What `direction` asks for in each step, times its factor, and by the formula."""
    mean, square, room = (torch.zeros(shape) for _ in range(3))
    exact_mean, exact_square = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    for seed in range(n_steps):
        gradient = (scale * numbers(shape, seed)).float()
        exact = gradient.double()
        exact_mean = 0.9 * exact_mean + 0.1 * exact
        exact_square = 0.8 * exact_square + 0.2 * exact**2
        step, factor = direction(gradient, mean, square, DAMPING, room)
        scale_of = exact_square.mean().sqrt()
        free = exact_mean / (exact_square.sqrt() + 1e-3 * scale_of)
        held = exact_mean / (exact_square.sqrt() + 0.2 * scale_of)
        yield step * factor, held * free.norm() / held.norm()


# Less than a chunk, chunks and a rest, and enough for several threads.
@pytest.mark.parametrize("shape", [(5, 7), (100, 99), (700, 301)])
@pytest.mark.parametrize("way", ["compiled", "torch"])
def test_steps_are_those_of_the_formula(shape, way, monkeypatch):
    if way == "torch":
        monkeypatch.setattr(damped, "_kernels_for", lambda tensor: None)
    for step, exact in steps_of(shape, 3):
        torch.testing.assert_close(step.double(), exact, rtol=1e-4, atol=1e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_size_of_the_loss_is_no_matter(scale):
    for (step, _), (scaled, _) in zip(steps_of((40, 30), 2), steps_of((40, 30), 2, scale), strict=True):
        torch.testing.assert_close(scaled, step, rtol=1e-3, atol=1e-6)


def test_nothing_ever_seen_moves_nothing():
    zeros = [torch.zeros(20, 20) for _ in range(4)]
    step, factor = direction(zeros[0], zeros[1], zeros[2], DAMPING, zeros[3])
    assert float(step.abs().max()) * factor == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_does_not_disappear(bad):
    gradient, mean, square, room = torch.ones(30, 30), *(torch.zeros(30, 30) for _ in range(3))
    gradient[3, 4] = bad
    step, factor = direction(gradient, mean, square, DAMPING, room)
    assert not torch.isfinite(step * factor).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("laid_out", ["rows", "columns"])
def test_weights_keep_their_digits(dtype, laid_out):
    weight = torch.ones(50, 40, dtype=dtype)
    weight = weight if laid_out == "rows" else weight.T.contiguous().T
    along = numbers((50, 40), 1).float()
    expected = 0.5 * weight - 1e-9 * along.to(dtype)
    move(weight, 0.5, along, 1e-9)
    torch.testing.assert_close(weight, expected, rtol=1e-15 if dtype == torch.float64 else 1e-6, atol=0)


def test_threads_share_it(monkeypatch):
    """Two threads add up in another order, and agree."""
    alone = [step for step, _ in steps_of((700, 301), 2)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert team.slices(700 * 301, damped._WORTH_IT) != [slice(0, 700 * 301)]
    for step, (shared, _) in zip(alone, steps_of((700, 301), 2), strict=True):
        torch.testing.assert_close(shared, step, rtol=1e-5, atol=0)
