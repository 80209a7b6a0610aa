"""Moments without rows: how many neighbours a centre has at each spline, and the way from dE/d(moments) to forces.

What `moments.py` is for rows (radial, x, y, z), this is for descriptors that sum the embedding net's value alone.
"""

from __future__ import annotations

from types import ModuleType

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.basis import PIECES, SLOPES
from lockstep.geometry.layout import Layout, Share
from lockstep.team import in_shares


class CountTranspose:
    """From neighbours to moments, from dE/d(moments) to forces, and the adjoint of that: compiled loops over pairs."""

    def __init__(self, layout: Layout, size: int, pair: NDArray, cell: NDArray) -> None:
        self._layout = layout
        self._pair, self._cell = pair, cell
        self._shape = (len(layout.atom), 1, layout.counts.shape[1] * size)
        self._pieces, self._slopes = PIECES.astype(pair.dtype), SLOPES.astype(pair.dtype)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] without empty slots."""
        result = torch.zeros(self._shape, dtype=dtype)
        kernels, values = _kernels(), result[:, 0].numpy()

        def run(share: Share) -> None:
            pair, cell, _, counts, rows = self._own(share)
            kernels.counts(pair, cell, counts, rows, self._pieces, values)

        in_shares(run, self._layout.shares())
        return result

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        layout, kernels, shares = self._layout, _kernels(), self._layout.shares()
        # A sum for each share: neighbours belong to no share alone.
        force = torch.zeros(len(shares), layout.n_frames, layout.n_atoms, 3, dtype=torch.float64)
        virial = torch.zeros(len(shares), layout.n_frames, 3, 3, dtype=torch.float64)
        forces, virials, slopes = force.flatten(1, 2).numpy(), virial.numpy(), gradient.contiguous()[:, 0].numpy()

        def run(share: Share) -> None:
            kernels.count_forces(slopes, *self._arguments(share), forces[share.number], virials[share.number])

        in_shares(run, shares)
        return force.sum(dim=0), virial.sum(dim=0)

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] what `forces` turns cotangents of forces and virials into."""
        result = torch.zeros(self._shape, dtype=dtype)
        force, virial = force_bar.reshape(-1, 3).contiguous().numpy(), virial_bar.contiguous().numpy()
        kernels, values = _kernels(), result[:, 0].numpy()
        in_shares(
            lambda share: kernels.count_adjoint(force, virial, *self._arguments(share), values), self._layout.shares()
        )
        return result

    def _arguments(self, share: Share) -> tuple[NDArray | int, ...]:
        return *self._own(share), self._slopes, self._layout.n_atoms, share.atoms.start

    def _own(self, share: Share) -> tuple[NDArray, ...]:
        """Columns, intervals and neighbours of a share's pairs; counts and rows of its atoms."""
        layout, pairs = self._layout, share.pairs
        of_atoms = layout.counts[share.atoms], layout.row_of_atom[share.atoms]
        return self._pair[pairs], self._cell[pairs], layout.neighbour[pairs], *of_atoms


def _kernels() -> ModuleType:
    from lockstep.geometry import kernels

    return kernels
