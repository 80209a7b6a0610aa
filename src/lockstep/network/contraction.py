"""The descriptor D = X^T X[:, :axis] of small matrices X [4, width], one for each centre, and its derivatives.

With S(X, P) = X[:, :axis] P^T + (X P, padded with zeros to the full width), which is linear in each argument:
the gradient of anything by X is S(X, dE/dD), and the other two products below are what its backward pass needs.
On a CPU compiled loops do this several times faster than batched products of such small matrices.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor


def contract(x: Tensor, axis: int) -> Tensor:
    """D [C, width * axis] of X [C, 4, width]."""
    kernels = _kernels_for(x)
    if kernels is None:
        return torch.bmm(x.transpose(1, 2), x[:, :, :axis]).flatten(1)
    result = x.new_empty(x.shape[0], x.shape[2] * axis)
    kernels.contract(x.numpy(), axis, result.numpy())
    return result


def spread(x: Tensor, p: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    """S(X, P) [C, 4, width] of X [C, 4, width] and P [C, width * axis], added to `out` if there is one."""
    kernels = _kernels_for(x)
    if kernels is None:
        p = p.reshape(x.shape[0], x.shape[2], axis)
        result = torch.bmm(x[:, :, :axis], p.transpose(1, 2))
        result[:, :, :axis] += torch.bmm(x, p)
        return result if out is None else out.add_(result)
    result = torch.zeros_like(x) if out is None else out
    kernels.spread(x.numpy(), p.numpy(), axis, result.numpy())
    return result


def polarise(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """Y^T X[:, :axis] + X^T Y[:, :axis], [C, width * axis]: the derivative of D along Y."""
    kernels = _kernels_for(x)
    if kernels is None:
        first = torch.bmm(y.transpose(1, 2), x[:, :, :axis])
        return first.baddbmm_(x.transpose(1, 2), y[:, :, :axis]).flatten(1)
    result = x.new_empty(x.shape[0], x.shape[2] * axis)
    kernels.polarise(x.numpy(), y.numpy(), axis, result.numpy())
    return result


def _kernels_for(x: Tensor) -> ModuleType | None:
    if x.device.type != "cpu":
        return None
    try:
        from lockstep.network import kernels
    except ImportError:
        return None
    return kernels
