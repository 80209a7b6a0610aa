"""Frames too large to be differentiated at once: centres in slices, each evaluated again on its way back.

The forces on an atom come from centres of several slices, and so the loss is known only after the last of them. What
the slices need for their way back is not kept meanwhile, which would be the memory of the whole frame, but computed
once more: a slice's forward pass is done twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.geometry import Environment
from lockstep.model import Potential, Prediction
from lockstep.model.potential import Parameters


def sum_of_slices(potential: Potential, slices: tuple[Environment, ...], parameters: Parameters) -> Prediction:
    """The prediction of a micro-batch from that of its slices."""
    if len(slices) == 1:
        prediction: Prediction = potential(slices[0], parameters)
        return prediction
    weight = next(weight for weight in potential.parameters() if weight.requires_grad)
    return Prediction(*_Slices.apply(weight, potential, slices, parameters))


class _Slices(torch.autograd.Function):
    """Only the weights are differentiated by, and they get their gradients directly: `weight` shows that there are."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, potential: Potential, slices: tuple[Environment, ...], parameters: Parameters
    ) -> tuple[Tensor, ...]:
        ctx.potential, ctx.slices, ctx.parameters = potential, slices, parameters
        return _parts(potential.predict(slices, parameters))

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[None, ...]:
        for environment in ctx.slices:
            with torch.enable_grad():
                parts = _parts(ctx.potential(environment, ctx.parameters))
            torch.autograd.backward(parts, bars)
        return None, None, None, None


def _parts(prediction: Prediction) -> tuple[Tensor, ...]:
    return prediction.energy, prediction.atom_energy, prediction.force, prediction.virial
