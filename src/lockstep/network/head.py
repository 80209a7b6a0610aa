"""From a descriptor's sums X to atomic energies *and* dE/dX, with a backward pass written out by hand.

The contraction X -> D and the fitting net are one function here because that is where a step's time goes. Forward
evaluates the net and pulls its gradient back to X; backward is the derivative of both, made of the same matrix
products: six of the net's size in all, which is the least there can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.network.blockwise import Block, LayerPass, layers_of, net_by_net
from lockstep.network.compiled_nets import CompiledNets, usable
from lockstep.network.contraction import Contraction
from lockstep.network.folding import Square
from lockstep.network.mlp import MLP


def energies_and_gradient(
    x: Tensor, contraction: Contraction, parameters: Tensor | None, blocks: list[Block]
) -> tuple[Tensor, Tensor]:
    """Energies [C] of centres with sums X [C, ...], and dE/dX; centres are in the order of the blocks.

    `parameters` [C, n] are appended to the descriptors; nothing is differentiated by them. Products are those of the
    precision of `x`, whatever that of the weights: these are cast on the way in, and their gradients on the way out.
    """
    weights = [weight for block in blocks for weight in block.net.parameters()]
    if not _passes_inputs_on(blocks[0].net):
        contraction = contraction.folded()
    energy, gradient = _Head.apply(x, contraction, parameters, blocks, *weights)
    return energy, gradient


def _passes_inputs_on(net: MLP) -> bool:
    """Whether the first layer gives its inputs to the next one, which then has to see all of them."""
    first, *others = layers_of(net)
    return not others or first.has_residual


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, contraction: Contraction, parameters: Tensor | None, blocks: list[Block], *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = x.detach().contiguous()
        descriptor = contraction.value(x)
        inputs = descriptor if parameters is None else torch.cat([descriptor, parameters], dim=1)
        kind = CompiledNets if usable(blocks, inputs) else NetsPass
        nets = kind(blocks, inputs, contraction.squares)
        gradient = nets.pulled_back()[:, : descriptor.shape[1]].contiguous()
        ctx.contraction, ctx.nets, ctx.extra = contraction, nets, inputs.shape[1] - descriptor.shape[1]
        ctx.save_for_backward(x, gradient)
        return nets.energies(), contraction.pull_back(x, gradient)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        energy_bar, x_gradient_bar = bars
        x, gradient = ctx.saved_tensors
        contraction: Contraction = ctx.contraction
        y = x_gradient_bar.contiguous()
        # The cotangent of the gradient has no name here, so that its memory is free after the first layer.
        descriptor_bar, weight_bars = ctx.nets.backward(energy_bar, _widened(contraction.push_forward(x, y), ctx.extra))
        descriptor_bar = descriptor_bar[:, : gradient.shape[1]].contiguous()
        return (contraction.backward(x, y, gradient, descriptor_bar), None, None, None, *weight_bars)


def _widened(x: Tensor, extra: int) -> Tensor:
    """With so many columns of zeros more."""
    return torch.nn.functional.pad(x, (0, extra)) if extra else x


class NetsPass:
    """The way of all nets forward and back. They serve different centres and have the same shape."""

    def __init__(self, blocks: list[Block], x: Tensor, squares: Sequence[Square]) -> None:
        *hidden, self._outputs = zip(*(layers_of(block.net) for block in blocks), strict=True)
        self._blocks = blocks
        self._passes: list[LayerPass] = []
        for layers in hidden:
            self._passes.append(LayerPass(blocks, layers, x, squares))
            x, squares = self._passes[-1].output(), ()
        self._last = x
        self._weights = [output.weight.detach().to(x.dtype) for output in self._outputs]

    def energies(self) -> Tensor:
        """Not kept here: what autograd returns must not be held by what it keeps for the way back."""
        energy = self._last.new_empty(self._last.shape[0])
        for block, output, weight in zip(self._blocks, self._outputs, self._weights, strict=True):
            out = energy[block.rows].unsqueeze(1)
            torch.addmm(output.bias.detach().to(energy.dtype), self._last[block.rows], weight, out=out)
        return energy

    def pulled_back(self) -> Tensor:
        """dE/d(input) of each centre."""
        gradient = torch.empty_like(self._last)
        for block, weight in zip(self._blocks, self._weights, strict=True):
            gradient[block.rows] = weight.T
        for each in reversed(self._passes):
            gradient = each.pulled_back(gradient)
        return gradient

    def backward(self, energy_bar: Tensor, gradient_bar: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Cotangents of the input and, net by net in the order of `parameters()`, of the weights."""
        slope_bars = []
        for each in self._passes:
            gradient_bar, slope_bar = each.gradient_backward(gradient_bar)
            slope_bars.append(slope_bar)
        bar, of_outputs = self._output_backward(energy_bar, gradient_bar)
        by_layer = [of_outputs]
        for each, slope_bar in zip(reversed(self._passes), reversed(slope_bars), strict=True):
            bar, of_layers = each.backward(bar, slope_bar)
            by_layer.append(of_layers)
        return bar, net_by_net(reversed(by_layer))

    def _output_backward(self, energy_bar: Tensor, gradient_bar: Tensor) -> tuple[Tensor, list[list[Tensor | None]]]:
        """The same for the linear layer at the end, whose weight is the first gradient of all."""
        bar = torch.empty_like(self._last)
        of_outputs: list[list[Tensor | None]] = []
        for block, weight in zip(self._blocks, self._weights, strict=True):
            own = energy_bar[block.rows]
            torch.mul(own.unsqueeze(1), weight.T, out=bar[block.rows])
            weight_bar = self._last[block.rows].T @ own.unsqueeze(1)
            weight_bar += gradient_bar[block.rows].sum(dim=0).unsqueeze(1)
            of_outputs.append([weight_bar, own.sum().reshape(1)])
        return bar, of_outputs
