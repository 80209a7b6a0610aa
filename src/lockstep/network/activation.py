"""Activation functions with their first two derivatives.

Forces are first derivatives of the energy, and a loss on forces has the second in its gradient. The derivatives take
the function's input *and* value, because several (tanh, sigmoid) are cheapest from the value.
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
    """A scalar function and its derivatives.

    Attributes:
        value: y = f(x).
        slope: f'(x) from x and y; autograd can differentiate it once more.
        curvature: f''(x) from x, y and f'(x).
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    curvature: Callable[[Tensor, Tensor, Tensor], Tensor]


def get_activation(name: str) -> Activation:
    """Look an activation up by its name in the input file, such as `tanh` or `silut:3.0`."""
    family, _, parameter = name.lower().partition(":")
    if family in ("silut", "custom_silu"):
        return _silut(float(parameter or 3.0))
    return ACTIVATIONS[family]


def _tanh_slope(x: Tensor, y: Tensor) -> Tensor:
    return 1.0 - y * y


def _tanh_curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    return (y * slope).mul_(-2.0)


def _sigmoid_slope(x: Tensor, y: Tensor) -> Tensor:
    return y * (1.0 - y)


def _sigmoid_curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    return slope * (1.0 - 2.0 * y)


def _relu_slope(x: Tensor, y: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _relu6_slope(x: Tensor, y: Tensor) -> Tensor:
    return ((x > 0) & (x < 6)).to(x.dtype)


def _softplus(x: Tensor) -> Tensor:
    # Torch turns to x beyond 20 by default, which is off by 2e-9 there; beyond 40 no float64 can tell.
    return F.softplus(x, threshold=40.0)


def _softplus_slope(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x)


def _softplus_curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    return slope * (1.0 - slope)


_GELU_SCALE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_slope(x: Tensor, y: Tensor) -> Tensor:
    t = torch.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)


def _gelu_curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    t = torch.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x**3))
    inner = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)
    bend = 6.0 * _GELU_SCALE * _GELU_CUBIC * x - 2.0 * t * inner * inner
    return (1.0 - t * t) * (inner + 0.5 * x * bend)


def _silu_slope(x: Tensor, y: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def _silu_curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))


def _identity(x: Tensor) -> Tensor:
    return x


def _one(x: Tensor, y: Tensor) -> Tensor:
    return torch.ones_like(x)


def _zero(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    return torch.zeros_like(x)


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

    def curvature(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        t = torch.tanh(slope_there * (x - threshold))
        beyond = -2.0 * slope_there**2 * t * (1.0 - t * t)
        return torch.where(x < threshold, _silu_curvature(x, y, slope), beyond)

    return Activation(value, slope, curvature)


ACTIVATIONS: dict[str, Activation] = {
    "tanh": Activation(torch.tanh, _tanh_slope, _tanh_curvature),
    "sigmoid": Activation(torch.sigmoid, _sigmoid_slope, _sigmoid_curvature),
    "relu": Activation(torch.relu, _relu_slope, _zero),
    "relu6": Activation(F.relu6, _relu6_slope, _zero),
    "softplus": Activation(_softplus, _softplus_slope, _softplus_curvature),
    "gelu": Activation(_gelu, _gelu_slope, _gelu_curvature),
    "gelu_tf": Activation(_gelu, _gelu_slope, _gelu_curvature),
    "silu": Activation(F.silu, _silu_slope, _silu_curvature),
    "none": Activation(_identity, _one, _zero),
    "linear": Activation(_identity, _one, _zero),
}
