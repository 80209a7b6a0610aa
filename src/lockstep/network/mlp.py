"""Residual multilayer perceptrons that give their value and, on request, the pull-back of a gradient.

Both are ordinary differentiable operations: a loss on the gradient then needs one ordinary backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.errors import UserError
from lockstep.memory import free_memory
from lockstep.network.activation import get_activation

_SMALL_NET = 1_000_000
"""Weights that a net may have without anyone asking whether there is memory for them."""
_COPIES = 4
"""Weights, gradient, and the optimizer's two."""


class Layer(nn.Module):
    """y = act(x W + b) [* idt] [+ x, or + (x, x) where the width doubles]."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        activation: str,
        residual: bool,
        timestep: bool,
        dtype: torch.dtype,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.activation_name = activation
        self.activation = get_activation(activation)
        self.residual = residual
        spread = 1.0 / (n_in + n_out) ** 0.5
        # Drawn in float64 whatever the precision, so that float32 and float64 start from the same weights.
        self.weight = nn.Parameter(_normal((n_in, n_out), 0.0, spread, generator).to(dtype))
        self.bias = nn.Parameter(_normal((n_out,), 0.0, 1.0, generator).to(dtype))
        step = _normal((n_out,), 0.1, 0.001, generator).to(dtype) if timestep else None
        self.idt = nn.Parameter(step) if step is not None else None

    @property
    def n_in(self) -> int:
        return self.weight.shape[0]

    @property
    def n_out(self) -> int:
        return self.weight.shape[1]

    @property
    def has_residual(self) -> bool:
        return self.residual and self.n_out in (self.n_in, 2 * self.n_in)

    @property
    def copies(self) -> int:
        """How often the input, side by side, is added to the output."""
        return self.n_out // self.n_in if self.has_residual else 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's value and the slope that `pull_back` needs, in the precision of `x`."""
        before = torch.addmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype))
        y = self.activation.value(before)
        slope = self.activation.slope(before, y)
        if self.idt is not None:
            idt = self.idt.to(x.dtype)
            y, slope = y * idt, slope * idt
        return self.with_residual(y, x), slope

    def with_residual(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the layer's input to its output, where the widths let it."""
        if self.residual and self.n_out == self.n_in:
            return y + x
        if self.residual and self.n_out == 2 * self.n_in:
            return y + torch.cat([x, x], dim=1)
        return y

    def value(self, x: Tensor) -> Tensor:
        """The layer's value alone, in the precision of `x`."""
        y = self.activation.value(torch.addmm(self.bias.to(x.dtype), x, self.weight.to(x.dtype)))
        if self.idt is not None:
            y = y * self.idt.to(x.dtype)
        return self.with_residual(y, x)

    def push_forward(self, x: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's value and its derivative along a direction of x, in the precision of `x`."""
        value, slope = self(x)
        return value, self.with_residual((along @ self.weight.to(x.dtype)) * slope, along)

    def pull_back(self, slope: Tensor, gradient: Tensor) -> Tensor:
        """dE/dx from dE/dy."""
        return self.through_residual((gradient * slope) @ self.weight.T, gradient)

    def through_residual(self, through: Tensor, gradient: Tensor) -> Tensor:
        """Add the gradient that comes through the residual connection: the transpose of `with_residual`."""
        if self.residual and self.n_out == self.n_in:
            return through + gradient
        if self.residual and self.n_out == 2 * self.n_in:
            return through + gradient[:, : self.n_in] + gradient[:, self.n_in :]
        return through


class MLP(nn.Module):
    """Hidden layers with residual connections and, for a fitting net, a linear output layer."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The net's value and the slopes of all layers, for `pull_back`."""
        slopes = []
        for layer in self.layers:
            x, slope = layer(x)
            slopes.append(slope)
        return x, slopes

    def value(self, x: Tensor) -> Tensor:
        """The net's value alone, in the precision of `x`."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x = layer.value(x)
        return x

    def push_forward(self, x: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        """The net's value and its derivative along a direction of x, in the precision of `x`."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            x, along = layer.push_forward(x, along)
        return x, along

    def pull_back(self, slopes: list[Tensor], gradient: Tensor) -> Tensor:
        """The gradient with respect to the input from that with respect to the output."""
        for layer, slope in zip(reversed(self.layers), reversed(slopes), strict=True):
            assert isinstance(layer, Layer)
            gradient = layer.pull_back(slope, gradient)
        return gradient


def embedding_net(
    neuron: Sequence[int],
    activation: str,
    resnet_dt: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
    n_in: int = 1,
) -> MLP:
    """From one radial number (and what else its input has) to `neuron[-1]` features."""
    return MLP(_hidden_layers([n_in, *neuron], activation, resnet_dt, dtype, generator))


def fitting_net(
    n_in: int,
    neuron: Sequence[int],
    activation: str,
    resnet_dt: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> MLP:
    """From a descriptor to one energy."""
    hidden = _hidden_layers([n_in, *neuron], activation, resnet_dt, dtype, generator)
    output = Layer(
        neuron[-1] if neuron else n_in,
        1,
        activation="none",
        residual=False,
        timestep=False,
        dtype=dtype,
        generator=generator,
    )
    return MLP([*hidden, output])


def _hidden_layers(
    widths: Sequence[int], activation: str, resnet_dt: bool, dtype: torch.dtype, generator: torch.Generator
) -> list[Layer]:
    _refuse_too_large(widths)
    return [
        Layer(
            n_in,
            n_out,
            activation=activation,
            residual=True,
            # A time step belongs to residual layers only: those that keep or double the width.
            timestep=resnet_dt and n_out in (n_in, 2 * n_in),
            dtype=dtype,
            generator=generator,
        )
        for n_in, n_out in itertools.pairwise(widths)
    ]


def _refuse_too_large(widths: Sequence[int]) -> None:
    """Stop before the system ends the process for want of memory, which it does without a word."""
    weights = sum(n_in * n_out for n_in, n_out in itertools.pairwise(widths))
    if weights <= _SMALL_NET:
        return
    need, free = _COPIES * weights * torch.float64.itemsize, free_memory()
    if need > free:
        raise UserError(
            f"a net with layers of {', '.join(map(str, widths))} has {weights} weights; to train it takes"
            f" {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free",
            where="model",
            remedy="make the layers in neuron narrower, or axis_neuron smaller",
        )


def _normal(shape: tuple[int, ...], mean: float, std: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).normal_(mean, std, generator=generator)
