"""What all compiled loops over the pairs of a layout have in common: shares of atoms, and sums over them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.basis import PIECES, SLOPES
from lockstep.geometry.layout import Layout, Share
from lockstep.team import in_shares


class PairLoops:
    """The pairs of a layout, with their columns and intervals, to be worked through by one thread or several."""

    def __init__(self, layout: Layout, pair: NDArray, cell: NDArray) -> None:
        self._layout, self._pair, self._cell = layout, pair, cell
        self._pieces, self._slopes = PIECES.astype(pair.dtype), SLOPES.astype(pair.dtype)

    def _in_shares(self, run: Callable[[Share], None]) -> None:
        """Loops that write to their own centres alone."""
        in_shares(run, self._layout.shares())

    def _summed(self, run: Callable[[Share, NDArray, NDArray], None]) -> tuple[Tensor, Tensor]:
        """Loops that add to forces [B * n, 3] and virials [B, 3, 3]: each share to its own, as neighbours belong to no
        share alone. The sums are [B, n, 3] and [B, 3, 3]."""
        layout, shares = self._layout, self._layout.shares()
        force = torch.zeros(len(shares), layout.n_frames, layout.n_atoms, 3, dtype=torch.float64)
        virial = torch.zeros(len(shares), layout.n_frames, 3, 3, dtype=torch.float64)
        forces, virials = force.flatten(1, 2).numpy(), virial.numpy()
        in_shares(lambda share: run(share, forces[share.number], virials[share.number]), shares)
        return force.sum(dim=0), virial.sum(dim=0)

    def _own(self, share: Share) -> tuple[NDArray, ...]:
        """Columns, intervals and neighbours of a share's pairs; counts and rows of its atoms."""
        layout, pairs = self._layout, share.pairs
        of_atoms = layout.counts[share.atoms], layout.row_of_atom[share.atoms]
        return self._pair[pairs], self._cell[pairs], layout.neighbour[pairs], *of_atoms
