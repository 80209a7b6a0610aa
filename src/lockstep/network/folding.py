"""Inputs of a layer that are equal by symmetry, given and multiplied once.

A descriptor's product X^T X[:, :axis] holds a symmetric matrix of `axis` rows: with axis 16, 120 of its numbers occur
twice. A layer that is given its lower triangle alone multiplies it with the sums of the weights that belong to equal
inputs, and gives both of them the same gradient. The layer's weight stays what it is in every file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.network.compiled_loops import kernels_for


class Square(NamedTuple):
    """Inputs `start` to `start + side**2` of a layer are a symmetric matrix, row by row."""

    start: int
    side: int

    @property
    def n_kept(self) -> int:
        return self.side * (self.side + 1) // 2


class Piece(NamedTuple):
    """Columns of what a layer is given, and the rows of its weight that belong to them.

    Attributes:
        square: of which the columns are the lower triangle, row by row; None where each column has one row.
    """

    columns: slice
    rows: slice
    square: Square | None

    def of(self, weight: Tensor) -> Tensor:
        """What the columns are multiplied with."""
        rows = weight[self.rows]
        if self.square is None:
            return rows
        triangle, kernels = _triangle(self.square.side, weight.device), kernels_for(weight)
        if kernels is None:
            summed = rows.index_select(0, triangle.below) + rows.index_select(0, triangle.above)
            return summed.mul_(triangle.share.to(weight.dtype))
        result = weight.new_empty(self.square.n_kept, weight.shape[1])
        below, above, share = triangle.below.numpy(), triangle.above.numpy(), triangle.share.to(weight.dtype)
        kernels.fold_rows(rows.numpy(), below, above, share.numpy()[:, 0], result.numpy())
        return result

    def put(self, gradient: Tensor, out: Tensor, first: bool) -> None:
        """Add to the gradient of the weight's rows what that of the columns' factor means; or begin with it."""
        assert self.square is not None
        triangle, kernels = _triangle(self.square.side, gradient.device), kernels_for(gradient)
        if kernels is None:
            product = gradient.index_select(0, triangle.kept)
            out.copy_(product) if first else out.add_(product)
        else:
            kernels.unfold_rows(gradient.numpy(), triangle.below.numpy(), triangle.above.numpy(), first, out.numpy())


def pieces_of(n_in: int, squares: Sequence[Square]) -> list[Piece]:
    """A weight of `n_in` rows, cut where its squares begin and end."""
    pieces, row, column = [], 0, 0
    for square in squares:
        if square.start > row:
            pieces.append(_plain(row, square.start, column))
            column += square.start - row
        row = square.start + square.side**2
        pieces.append(Piece(slice(column, column + square.n_kept), slice(square.start, row), square))
        column += square.n_kept
    if n_in > row:
        pieces.append(_plain(row, n_in, column))
    return pieces


def lower_triangle(side: int, device: torch.device) -> Tensor:
    """Where the kept numbers stand in a square, row by row."""
    return _triangle(side, device).below


def _plain(start: int, stop: int, column: int) -> Piece:
    return Piece(slice(column, column + stop - start), slice(start, stop), None)


class _Triangle(NamedTuple):
    """The lower triangle of a square.

    Attributes:
        below: where its numbers stand in the square.
        above: where their mirror images do.
        share: a half on the diagonal, where the two are the same, and else one.
        kept: for each number of the square, which of the triangle's it equals.
    """

    below: Tensor
    above: Tensor
    share: Tensor
    kept: Tensor


@lru_cache(maxsize=16)
def _triangle(side: int, device: torch.device) -> _Triangle:
    m, a = torch.tril_indices(side, side, device="cpu")
    row = torch.arange(side, device="cpu")
    high, low = torch.maximum(row.unsqueeze(1), row), torch.minimum(row.unsqueeze(1), row)
    share = torch.where(m == a, 0.5, 1.0).unsqueeze(1)
    kept = (high * (high + 1) // 2 + low).flatten()
    return _Triangle(*(table.to(device) for table in (m * side + a, a * side + m, share, kept)))
