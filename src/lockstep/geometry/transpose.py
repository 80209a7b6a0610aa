"""From the energy's gradient with respect to the features back to forces and virial.

The map is linear, with a matrix that belongs to the frame. So its adjoint, which the backward pass of a loss on
forces needs, is made of the same arrays, and no second derivative of anything is ever taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.geometry.environment import Environment


def forces_and_virial(gradients: Sequence[Tensor], environment: Environment) -> tuple[Tensor, Tensor]:
    """Forces [B, n, 3] and virials [B, 3, 3] from dE/d(features), one gradient for each view; their forces add up."""
    forces, virial = _Transpose.apply(environment, *gradients)
    return forces, virial


class _Transpose(torch.autograd.Function):
    """The linear map of an environment, known to autograd."""

    @staticmethod
    def forward(ctx: Any, environment: Environment, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        ctx.environment, ctx.dtypes = environment, [gradient.dtype for gradient in gradients]
        first, *others = zip(environment.transposes, gradients, strict=True)
        force, virial = first[0].forces(first[1])
        for transpose, gradient in others:
            more_force, more_virial = transpose.forces(gradient)
            force, virial = force.add_(more_force), virial.add_(more_virial)
        return force, virial

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        force_bar, virial_bar = bars
        transposes = ctx.environment.transposes
        return None, *(t.adjoint(force_bar, virial_bar, dtype) for t, dtype in zip(transposes, ctx.dtypes, strict=True))
