"""Moments without rows: how many neighbours a centre has at each spline, and the way from dE/d(moments) to forces.

What `moments.py` is for rows (radial, x, y, z), this is for descriptors that sum the embedding net's value alone.
"""

from __future__ import annotations

from types import ModuleType

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.layout import Layout, Share
from lockstep.geometry.loops import PairLoops


class CountTranspose(PairLoops):
    """From neighbours to moments, from dE/d(moments) to forces, and the adjoint of that: compiled loops over pairs."""

    def __init__(self, layout: Layout, size: int, pair: NDArray, cell: NDArray) -> None:
        super().__init__(layout, pair, cell)
        self._shape = (len(layout.atom), 1, layout.counts.shape[1] * size)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] without empty slots."""
        result = torch.zeros(self._shape, dtype=dtype)
        kernels, values = _kernels(), result[:, 0].numpy()

        def run(share: Share) -> None:
            pair, cell, _, counts, rows = self._own(share)
            kernels.counts(pair, cell, counts, rows, self._pieces, values)

        self._in_shares(run)
        return result

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        kernels, values = _kernels(), gradient.contiguous()[:, 0].numpy()
        return self._summed(lambda share, *sums: kernels.count_forces(values, *self._arguments(share), *sums))

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] what `forces` turns cotangents of forces and virials into."""
        result = torch.zeros(self._shape, dtype=dtype)
        force, virial = force_bar.reshape(-1, 3).contiguous().numpy(), virial_bar.contiguous().numpy()
        kernels, values = _kernels(), result[:, 0].numpy()
        self._in_shares(lambda share: kernels.count_adjoint(force, virial, *self._arguments(share), values))
        return result

    def _arguments(self, share: Share) -> tuple[NDArray | int, ...]:
        return *self._own(share), self._slopes, self._layout.n_atoms, share.atoms.start


def _kernels() -> ModuleType:
    from lockstep.geometry import kernels

    return kernels
