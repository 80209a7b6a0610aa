"""From the matrices X to atomic energies *and* dE/dX, with a backward pass written out by hand.

Descriptor and fitting net are one function here because that is where a step's time goes. Forward evaluates
the net and pulls its gradient back to X; backward is the derivative of both, made of the same matrix products: six of
the net's size in all, which is the least there can be.

For a layer y = act(x W + b) * idt (+ x), with slope s = act' * idt and the gradient g of the energy:
    forward    x -> y;    q = g s,  g <- q W^T (+ g)
    backward   of the second line first, from the cotangent of g upwards; then of the first line, downwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.network.activation import Activation
from lockstep.network.contraction import contract, polarise, spread
from lockstep.network.mlp import MLP, Layer


@dataclass(frozen=True)
class Block:
    """The centres of one type and the net that serves them."""

    centres: slice
    net: MLP


def energies_and_gradient(
    x: Tensor, axis: int, parameters: Tensor | None, blocks: list[Block]
) -> tuple[Tensor, Tensor]:
    """Energies [C] of centres with matrices X [C, 4, width], and dE/dX; centres are in the order of the blocks.

    `parameters` [C, n] are appended to the descriptors; nothing is differentiated by them.
    """
    weights = [weight for block in blocks for weight in block.net.parameters()]
    energy, gradient = _Head.apply(x, axis, parameters, blocks, *weights)
    return energy, gradient


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: int, parameters: Tensor | None, blocks: list[Block], *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = x.detach().contiguous()
        descriptor = contract(x, axis)
        inputs = descriptor if parameters is None else torch.cat([descriptor, parameters], dim=1)
        passes = [_NetPass(block.net, inputs[block.centres]) for block in blocks]
        gradient = torch.cat([each.pulled_back() for each in passes]) if len(passes) > 1 else passes[0].pulled_back()
        gradient = gradient[:, : descriptor.shape[1]].contiguous()
        ctx.axis, ctx.blocks, ctx.passes, ctx.extra = axis, blocks, passes, inputs.shape[1] - descriptor.shape[1]
        ctx.save_for_backward(x, gradient)
        return torch.cat([each.energy for each in passes]), spread(x, gradient, axis)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        energy_bar, x_gradient_bar = bars
        x, gradient = ctx.saved_tensors
        axis: int = ctx.axis
        y = x_gradient_bar.contiguous()
        gradient_bar = polarise(x, y, axis)
        if ctx.extra:
            gradient_bar = torch.nn.functional.pad(gradient_bar, (0, ctx.extra))
        descriptor_bars, weight_bars = [], []
        for block, each in zip(ctx.blocks, ctx.passes, strict=True):
            bar, of_weights = each.backward(energy_bar[block.centres], gradient_bar[block.centres])
            descriptor_bars.append(bar)
            weight_bars += of_weights
        descriptor_bar = torch.cat(descriptor_bars)[:, : gradient.shape[1]].contiguous()
        x_bar = spread(y, gradient, axis)
        return (spread(x, descriptor_bar, axis, out=x_bar), None, None, None, *weight_bars)


@dataclass
class _LayerPass:
    """What a hidden layer leaves behind: its input, x W + b, the activation's value and slope; later g and q."""

    layer: Layer
    x: Tensor
    before: Tensor
    value: Tensor
    slope: Tensor
    gradient: Tensor
    scaled_gradient: Tensor

    @property
    def activation(self) -> Activation:
        return self.layer.activation


class _NetPass:
    """One net's way forward and back, for the centres of one type."""

    def __init__(self, net: MLP, x: Tensor) -> None:
        *hidden, output = (layer for layer in net.layers if isinstance(layer, Layer))
        self.output = output
        self.passes: list[_LayerPass] = []
        for layer in hidden:
            before = torch.addmm(layer.bias.detach(), x, layer.weight.detach())
            value = layer.activation.value(before)
            slope = layer.activation.slope(before, value)
            # The gradients are filled in on the way back.
            self.passes.append(_LayerPass(layer, x, before, value, slope, before, before))
            x = layer.with_residual(value if layer.idt is None else value * layer.idt.detach(), x)
        self.last = x
        self.energy = torch.addmm(output.bias.detach(), x, output.weight.detach()).squeeze(1)

    def pulled_back(self) -> Tensor:
        """dE/d(input) of each centre."""
        gradient = self.output.weight.detach().T.expand_as(self.last)
        for each in reversed(self.passes):
            layer = each.layer
            scaled = gradient * each.slope
            if layer.idt is not None:
                scaled.mul_(layer.idt.detach())
            each.gradient, each.scaled_gradient = gradient, scaled
            gradient = layer.through_residual(scaled @ layer.weight.detach().T, gradient)
        return gradient

    def backward(self, energy_bar: Tensor, gradient_bar: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Cotangents of the input and of the weights, in the order of `parameters()`."""
        sums = [_WeightSum(each.layer.weight) for each in self.passes]
        slope_bars, bar = self._back_through_gradient(gradient_bar, sums)
        output_bar = self.last.T @ energy_bar.unsqueeze(1) + bar.sum(dim=0).unsqueeze(1)
        bar = energy_bar.unsqueeze(1) * self.output.weight.detach().T
        results: list[Tensor | None] = []
        for each, slope_bar, weight_sum in zip(
            reversed(self.passes), reversed(slope_bars), reversed(sums), strict=True
        ):
            bar, of_layer = _back_through_value(each, bar, slope_bar, weight_sum)
            results = of_layer + results
        return bar, [*results, output_bar, energy_bar.sum().reshape(1)]

    def _back_through_gradient(self, bar: Tensor, sums: list[_WeightSum]) -> tuple[list[Tensor], Tensor]:
        """Cotangents of the slopes and of the output's gradient, from that of the input's gradient."""
        slope_bars = []
        for each, weight_sum in zip(self.passes, sums, strict=True):
            layer = each.layer
            weight_sum.add(bar.T, each.scaled_gradient)
            scaled_bar = bar @ layer.weight.detach()
            slope_bars.append(scaled_bar * each.gradient)
            scaled_bar.mul_(each.slope)
            if layer.idt is not None:
                scaled_bar.mul_(layer.idt.detach())
            bar = layer.with_residual(scaled_bar, bar)
        return slope_bars, bar


class _WeightSum:
    """The sum of products that is a weight's cotangent.

    Where the weight has a buffer for its gradient (`main_grad`), the products go straight into it and autograd is told
    of no gradient: a second copy of the largest matrices, and the time to add it, are saved.
    """

    def __init__(self, weight: Tensor) -> None:
        self._buffer: Tensor | None = getattr(weight, "main_grad", None)
        self._weight = weight
        self.result: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        if not self._weight.requires_grad:
            return
        if self._buffer is not None:
            self._buffer.addmm_(left, right)
        elif self.result is None:
            self.result = left @ right
        else:
            self.result.addmm_(left, right)


def _back_through_value(
    each: _LayerPass, bar: Tensor, slope_bar: Tensor, weight_sum: _WeightSum
) -> tuple[Tensor, list[Tensor | None]]:
    """Cotangents of a layer's input and weights; `slope_bar` is by slope times idt."""
    layer = each.layer
    curvature = each.activation.curvature(each.before, each.value, each.slope)
    before_bar = torch.addcmul(bar * each.slope, slope_bar, curvature)
    of_layer: list[Tensor | None] = []
    if layer.idt is not None:
        before_bar.mul_(layer.idt.detach())
        of_layer = [torch.addcmul(bar * each.value, slope_bar, each.slope).sum(dim=0)]
    weight_sum.add(each.x.T, before_bar)
    through = layer.through_residual(before_bar @ layer.weight.detach().T, bar)
    return through, [weight_sum.result, before_bar.sum(dim=0), *of_layer]
