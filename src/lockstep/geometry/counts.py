"""Moments without rows: how many neighbours a centre has at each spline, and the way from dE/d(moments) to forces.

What `moments.py` is for rows (radial, x, y, z), this is for descriptors that sum the embedding net's value alone.
"""

from __future__ import annotations

from types import ModuleType

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.basis import PIECES, SLOPES
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
