"""Activation functions with their first derivative, both written so that autograd can differentiate them once more.

The derivative takes the function's input *and* value, because several (tanh, sigmoid) are cheapest from the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Activation:
    """A scalar function and its derivative."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def get_activation(name: str) -> Activation:
    """Look an activation up by its name in the input file, such as `tanh` or `silut:3.0`."""
    family, _, parameter = name.lower().partition(":")
    if family in ("silut", "custom_silu"):
        return _silut(float(parameter or 3.0))
    return ACTIVATIONS[family]


def _tanh_slope(x: Tensor, y: Tensor) -> Tensor:
    return 1.0 - y * y


def _sigmoid_slope(x: Tensor, y: Tensor) -> Tensor:
    return y * (1.0 - y)


def _relu_slope(x: Tensor, y: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _relu6_slope(x: Tensor, y: Tensor) -> Tensor:
    return ((x > 0) & (x < 6)).to(x.dtype)


def _softplus(x: Tensor) -> Tensor:
    # Torch turns to x beyond 20 by default, which is off by 2e-9 there; beyond 40 no float64 can tell.
    return F.softplus(x, threshold=40.0)


def _softplus_slope(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x)


_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_slope(x: Tensor, y: Tensor) -> Tensor:
    t = torch.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)


def _silu_slope(x: Tensor, y: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def _identity(x: Tensor) -> Tensor:
    return x


def _one(x: Tensor, y: Tensor) -> Tensor:
    return torch.ones_like(x)


def _silut(threshold: float) -> Activation:
    """SiLU below the threshold, continued with equal value and slope by a tanh above it."""
    s = 1.0 / (1.0 + math.exp(-threshold))
    value_there = threshold * s
    slope_there = s * (1.0 + threshold * (1.0 - s))

    def value(x: Tensor) -> Tensor:
        beyond = torch.tanh(slope_there * (x - threshold)) + value_there
        return torch.where(x < threshold, F.silu(x), beyond)

    def slope(x: Tensor, y: Tensor) -> Tensor:
        t = torch.tanh(slope_there * (x - threshold))
        return torch.where(x < threshold, _silu_slope(x, y), slope_there * (1.0 - t * t))

    return Activation(value, slope)


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(torch.tanh, _tanh_slope),
    "sigmoid": Activation(torch.sigmoid, _sigmoid_slope),
    "relu": Activation(torch.relu, _relu_slope),
    "relu6": Activation(F.relu6, _relu6_slope),
    "softplus": Activation(_softplus, _softplus_slope),
    "gelu": Activation(_gelu, _gelu_slope),
    "gelu_tf": Activation(_gelu, _gelu_slope),
    "silu": Activation(F.silu, _silu_slope),
    "none": Activation(_identity, _one),
    "linear": Activation(_identity, _one),
}
