"""An Adam step whose small directions are held back, in float32, of weights in any precision.

Adam gives every direction a step of one length, whatever its gradient. Early on a few directions have far to go and all
others are noise. Here those whose gradients are small next to the matrix's root mean square are held back, and the
step keeps the length that it would have without. On a CPU compiled loops do it in three passes over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.team import in_shares, rows_in_shares, slices

SMALLEST = 1e-30
"""Keeps a matrix that never had a gradient from dividing by zero."""
_WORTH_IT = 1 << 16
"""Numbers that are worth a thread of their own."""


class Damping(NamedTuple):
    """How a step is made.

    Attributes:
        beta1: decay of the running mean of the gradient.
        beta2: of its square.
        epsilon: what is added to every root, as a fraction of the root mean square.
        damping: the same for what is held back.
    """

    beta1: float
    beta2: float
    epsilon: float
    damping: float


def direction(gradient: Tensor, mean: Tensor, square: Tensor, damping: Damping, room: Tensor) -> tuple[Tensor, float]:
    """Take a gradient into both running means; the step that they ask for, and a factor it is still to be taken by.

    `gradient` and `room` have nothing of value in them afterwards.
    """
    kernels = _kernels_for(gradient)
    if kernels is None:
        return _in_torch(gradient, mean, square, damping, room), 1.0
    flat = [tensor.view(-1).numpy() for tensor in (gradient, mean, square, room)]
    keep = np.float32(damping.beta1), np.float32(damping.beta2)
    [total] = _summed(lambda own, sums: kernels.take_in(*(x[own] for x in flat[:3]), keep, sums), flat[0].size, 1)
    scale = (total / flat[0].size) ** 0.5 + SMALLEST
    floors = np.float32(damping.epsilon * scale), np.float32(max(damping.damping, damping.epsilon) * scale)

    def direct(own: slice, sums: NDArray) -> None:
        _, means, squares, result = (x[own] for x in flat)
        kernels.direct(means, squares, floors, result, sums)

    free, held = _summed(direct, flat[0].size, 2)
    return room, free**0.5 / (held**0.5 + SMALLEST)


def move(weight: Tensor, keep: float, along: Tensor, rate: float) -> None:
    """weight = keep weight - rate along, where the latter may have less digits."""
    kernels = _kernels_for(weight)
    if kernels is None:
        weight.mul_(keep).add_(along, alpha=-rate)
        return
    weights, steps = weight.view(-1).numpy(), along.view(-1).numpy()
    rows_in_shares(lambda own: kernels.move(weights[own], keep, steps[own], rate), weights.size, _WORTH_IT)


def _in_torch(gradient: Tensor, mean: Tensor, square: Tensor, damping: Damping, room: Tensor) -> Tensor:
    mean.lerp_(gradient, 1 - damping.beta1)
    square.mul_(damping.beta2).addcmul_(gradient, gradient, value=1 - damping.beta2)
    scale = square.mean().sqrt() + SMALLEST
    root = torch.sqrt(square, out=gradient)
    length = torch.div(mean, root.add_(damping.epsilon * scale), out=room).norm()
    torch.div(mean, root.add_(max(damping.damping - damping.epsilon, 0.0) * scale), out=room)
    return room.mul_(length / (room.norm() + SMALLEST))


def _summed(run: Callable[[slice, NDArray], None], size: int, n_sums: int) -> list[float]:
    """Run a loop that adds to so many sums, each share to its own."""
    shares = slices(size, _WORTH_IT)
    sums = np.zeros((len(shares), n_sums))
    in_shares(lambda share: run(share[1], sums[share[0]]), list(enumerate(shares)))
    totals: list[float] = sums.sum(axis=0).tolist()
    return totals


def _kernels_for(tensor: Tensor) -> ModuleType | None:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    try:
        from lockstep.optim import kernels
    except ImportError:
        return None
    return kernels
