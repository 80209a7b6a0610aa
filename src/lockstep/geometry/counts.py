"""Moments without rows: how many neighbours a centre has at each spline, and the way from dE/d(moments) to forces.

What `moments.py` is for rows (radial, x, y, z), this is for descriptors that sum the embedding net's value alone.
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.basis import PIECES, SLOPES, TOUCHED
from lockstep.geometry.layout import Layout


class CountTranspose:
    """From neighbours to moments, from dE/d(moments) to forces, and the adjoint of that: compiled loops over pairs."""

    def __init__(self, layout: Layout, size: int, pair: NDArray, cell: NDArray) -> None:
        self._layout = layout
        self._pair, self._cell = pair, cell
        self._shape = (len(layout.atom), 1, layout.counts.shape[1] * size)
        self._pieces, self._slopes = PIECES.astype(pair.dtype), SLOPES.astype(pair.dtype)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] without empty slots."""
        kernels = _kernels()
        result = torch.zeros(self._shape, dtype=dtype)
        layout = self._layout
        kernels.counts(self._pair, self._cell, layout.counts, layout.row_of_atom, self._pieces, result[:, 0].numpy())
        return result

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        kernels = _kernels()
        layout = self._layout
        force = torch.zeros(layout.n_frames * layout.n_atoms, 3, dtype=torch.float64)
        virial = torch.zeros(layout.n_frames, 3, 3, dtype=torch.float64)
        kernels.count_forces(gradient.contiguous()[:, 0].numpy(), *self._arguments(), force.numpy(), virial.numpy())
        return force.view(layout.n_frames, layout.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] what `forces` turns cotangents of forces and virials into."""
        kernels = _kernels()
        result = torch.zeros(self._shape, dtype=dtype)
        force, virial = force_bar.reshape(-1, 3).contiguous(), virial_bar.contiguous()
        kernels.count_adjoint(force.numpy(), virial.numpy(), *self._arguments(), result[:, 0].numpy())
        return result

    def _arguments(self) -> tuple[NDArray | int, ...]:
        layout = self._layout
        arrays = (self._pair, self._cell, layout.neighbour, layout.counts, layout.row_of_atom, self._slopes)
        return (*arrays, layout.n_atoms)


def _kernels() -> ModuleType:
    from lockstep.geometry import kernels

    return kernels


class PlainCountTranspose:
    """The same three maps in plain tensor operations, for any device."""

    def __init__(self, layout: Layout, size: int, pair: Tensor, cell: Tensor) -> None:
        self._layout = layout
        device = pair.device
        self._shape = (len(layout.atom), 1, layout.counts.shape[1] * size)
        self._offset, self._position_slope, self._distance = pair[:, 0], pair[:, 6], pair[:, 7]
        self._unit = pair[:, 8:]
        self._centre = torch.from_numpy(layout.pair_centre()).to(device)
        self._neighbour = torch.from_numpy(np.ascontiguousarray(layout.neighbour)).to(device)
        self._frame = torch.from_numpy(layout.pair_frame()).to(device)
        column = torch.from_numpy(layout.pair_column() * size).to(device) + cell
        row = torch.from_numpy(layout.pair_row()).to(device) * self._shape[2]
        self._index = (row + column)[:, None] + torch.arange(TOUCHED, device=device)

    @cached_property
    def _slope(self) -> Tensor:
        return self._evaluate(SLOPES) * self._position_slope[:, None]

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] without empty slots."""
        return self._scatter(self._evaluate(PIECES), dtype)

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        layout = self._layout
        stretch = (gradient.reshape(-1)[self._index] * self._slope).sum(-1)
        pair = (stretch[:, None] * self._unit).to(torch.float64)
        force = torch.zeros(layout.n_frames * layout.n_atoms, 3, dtype=torch.float64, device=pair.device)
        force.index_add_(0, self._centre, pair).index_add_(0, self._neighbour, pair, alpha=-1.0)
        outer = pair[:, :, None] * self._vector()[:, None, :]
        virial = torch.zeros(layout.n_frames, 3, 3, dtype=torch.float64, device=pair.device)
        virial.index_add_(0, self._frame, outer, alpha=-1.0)
        return force.view(layout.n_frames, layout.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] what `forces` turns cotangents of forces and virials into."""
        flat = force_bar.reshape(-1, 3)
        bar = flat[self._centre] - flat[self._neighbour]
        bar = bar - torch.einsum("pab,pb->pa", virial_bar[self._frame], self._vector())
        along = (self._unit * bar.to(self._unit.dtype)).sum(1)
        return self._scatter(along[:, None] * self._slope, dtype)

    def _vector(self) -> Tensor:
        return (self._unit * self._distance[:, None]).to(torch.float64)

    def _evaluate(self, pieces: NDArray) -> Tensor:
        table = torch.as_tensor(pieces, dtype=self._offset.dtype, device=self._offset.device)
        powers = self._offset[:, None] ** torch.arange(len(pieces), device=self._offset.device)
        return powers @ table

    def _scatter(self, parts: Tensor, dtype: torch.dtype) -> Tensor:
        result = torch.zeros(self._shape, dtype=dtype, device=parts.device)
        result.view(-1).index_add_(0, self._index.reshape(-1), parts.reshape(-1).to(dtype))
        return result
