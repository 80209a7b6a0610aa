"""From the energy's gradient with respect to the features back to forces and virial.

The map is linear, with a matrix that belongs to the frame. So its adjoint, which the backward pass of a loss on
forces needs, is made of the same arrays, and no second derivative of anything is ever taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.geometry.environment import Environment


def forces_and_virial(gradient: Tensor, environment: Environment) -> tuple[Tensor, Tensor]:
    """Forces [B, n, 3] and virials [B, 3, 3] from dE/d(features)."""
    forces, virial = _Transpose.apply(gradient, environment)
    return forces, virial


class _Transpose(torch.autograd.Function):
    """The linear map of an environment, known to autograd."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, environment: Environment) -> tuple[Tensor, Tensor]:
        ctx.environment, ctx.dtype = environment, gradient.dtype
        return environment.transpose.forces(gradient)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor, None]:
        force_bar, virial_bar = bars
        return ctx.environment.transpose.adjoint(force_bar, virial_bar, ctx.dtype), None
