"""The splines' constants as tensors, kept on every device that has asked for them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.geometry.basis import PIECES, S0, SLOPES, TOUCHED, SplineBasis


class BasisConstants(NamedTuple):
    """Attributes:
    fit: [size, nodes] from a net's values at the nodes to its coefficients.
    radial: [nodes] the radial function at the nodes.
    """

    fit: Tensor
    radial: Tensor


@lru_cache(maxsize=256)
def basis_constants(basis: SplineBasis, device: torch.device) -> BasisConstants:
    # Copied while the caller waits: whoever finds them here later, in whatever stream, finds them whole.
    return BasisConstants(*(torch.as_tensor(array).to(device) for array in (basis.fit, basis.radial(basis.nodes))))


@lru_cache(maxsize=64)
def spline_tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The splines' pieces and their slopes, [power, j]."""
    pieces, slopes = (torch.as_tensor(table).to(device, dtype) for table in (PIECES, SLOPES))
    return pieces, slopes


def evaluate(offset: Tensor, table: Tensor) -> Tensor:
    """[n, TOUCHED] the pieces of a table at positions [n] in their intervals."""
    return offset[:, None] ** torch.arange(len(table), device=offset.device) @ table


def all_splines(basis: SplineBasis, s: Tensor) -> Tensor:
    """[n, size] all splines of a basis where the radial function has the values s [n]."""
    position = torch.asinh(s / S0) * basis.per_unit
    cell = position.to(torch.int64).clamp_(0, basis.intervals - 1)
    touched = evaluate(position - cell, spline_tables(s.dtype, s.device)[0])
    result = torch.zeros(len(s), basis.size, dtype=s.dtype, device=s.device)
    return result.scatter_(1, cell[:, None] + torch.arange(TOUCHED, device=s.device), touched)
