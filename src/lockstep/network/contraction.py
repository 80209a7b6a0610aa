"""From the sums X over a centre's neighbours to what the fitting net sees, D, with all derivatives a training needs.

The head between X and the energies takes one of these as a parameter. For D(X) and the gradient g = dE/dD it asks for
    value           D
    pull_back       dE/dX, from g
    push_forward    the derivative of D along Y
    backward        the cotangent of X: the derivative by X of <pull_back(X, g), Y> + <D(X), bar>, where Y and bar are
                    the cotangents of dE/dX and of D
and for `folded`, the same contraction with numbers of D that are equal by symmetry given once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from lockstep.network.compiled_loops import kernels_for
from lockstep.network.folding import Square, lower_triangle
from lockstep.team import rows_in_shares

_WORTH_IT = 64
"""Centres that make some fifty microseconds of a loop, for which another thread gains more than it costs."""


class Contraction(Protocol):
    """How X [C, *shape] becomes D [C, n_out].

    Attributes:
        squares: parts of a D without folds of which the lower triangle stands here; none where D is given in full.
    """

    shape: tuple[int, ...]
    n_out: int
    squares: tuple[Square, ...]

    def folded(self) -> Contraction: ...

    def value(self, x: Tensor) -> Tensor: ...

    def pull_back(self, x: Tensor, gradient: Tensor) -> Tensor: ...

    def push_forward(self, x: Tensor, along: Tensor) -> Tensor: ...

    def backward(self, x: Tensor, along: Tensor, gradient: Tensor, bar: Tensor) -> Tensor: ...


class Quadratic:
    """D = X^T X[:, :axis] of small matrices X [4, width], flattened row by row.

    With S(X, P) = X[:, :axis] P^T + (X P, padded with zeros to the full width), which is linear in each argument, the
    gradient of anything by X is S(X, dE/dD). On a CPU compiled loops do this several times faster than batched
    products of such small matrices.
    """

    def __init__(self, width: int, axis: int, squares: tuple[Square, ...] = ()) -> None:
        self.shape: tuple[int, ...] = (4, width)
        self.axis, self.squares = axis, squares
        self.n_out = width * axis - (axis * (axis - 1) // 2 if squares else 0)

    def folded(self) -> Quadratic:
        return self if self.axis == 1 else Quadratic(self.shape[1], self.axis, (Square(0, self.axis),))

    def value(self, x: Tensor) -> Tensor:
        kernels = kernels_for(x)
        if kernels is None:
            return self._kept(torch.bmm(x.transpose(1, 2), x[:, :, : self.axis]).flatten(1))
        result = x.new_empty(x.shape[0], self.n_out)
        sums, products, folded = x.numpy(), result.numpy(), bool(self.squares)
        rows_in_shares(
            lambda rows: kernels.contract(sums[rows], self.axis, folded, products[rows]), len(sums), _WORTH_IT
        )
        return result

    def pull_back(self, x: Tensor, gradient: Tensor) -> Tensor:
        return self._spread(x, gradient)

    def push_forward(self, x: Tensor, along: Tensor) -> Tensor:
        kernels = kernels_for(x)
        if kernels is None:
            first = torch.bmm(along.transpose(1, 2), x[:, :, : self.axis])
            return self._kept(first.baddbmm_(x.transpose(1, 2), along[:, :, : self.axis]).flatten(1))
        result = x.new_empty(x.shape[0], self.n_out)
        sums, y, products, folded = x.numpy(), along.numpy(), result.numpy(), bool(self.squares)
        rows_in_shares(
            lambda rows: kernels.polarise(sums[rows], y[rows], self.axis, folded, products[rows]), len(sums), _WORTH_IT
        )
        return result

    def backward(self, x: Tensor, along: Tensor, gradient: Tensor, bar: Tensor) -> Tensor:
        return self._spread(x, bar, out=self._spread(along, gradient))

    def _spread(self, x: Tensor, p: Tensor, out: Tensor | None = None) -> Tensor:
        """S(X, P) [C, 4, width], added to `out` if there is one."""
        kernels, axis = kernels_for(x), self.axis
        if kernels is None:
            p = self._in_full(p).reshape(x.shape[0], x.shape[2], axis)
            result = torch.bmm(x[:, :, :axis], p.transpose(1, 2))
            result[:, :, :axis] += torch.bmm(x, p)
            return result if out is None else out.add_(result)
        result = torch.zeros_like(x) if out is None else out
        sums, factors, spread, folded = x.numpy(), p.numpy(), result.numpy(), bool(self.squares)
        rows_in_shares(
            lambda rows: kernels.spread(sums[rows], factors[rows], axis, folded, spread[rows]), len(sums), _WORTH_IT
        )
        return result

    def _kept(self, full: Tensor) -> Tensor:
        """What is given of a D in full."""
        if not self.squares:
            return full
        below, beyond = lower_triangle(self.axis, full.device), self.axis**2
        return torch.cat([full[:, :beyond].index_select(1, below), full[:, beyond:]], dim=1)

    def _in_full(self, kept: Tensor) -> Tensor:
        """The transpose of it: zeros where nothing is given."""
        if not self.squares:
            return kept
        below, n_square = lower_triangle(self.axis, kept.device), self.squares[0].n_kept
        square = kept.new_zeros(kept.shape[0], self.axis**2).index_copy_(1, below, kept[:, :n_square])
        return torch.cat([square, kept[:, n_square:]], dim=1)


class AsItIs:
    """D = X, numbers that no product is made of."""

    squares: tuple[Square, ...] = ()

    def __init__(self, *shape: int) -> None:
        self.shape, self.n_out = shape, prod(shape)

    def folded(self) -> AsItIs:
        return self

    def value(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def pull_back(self, x: Tensor, gradient: Tensor) -> Tensor:
        # A copy: what autograd returns must not be held by what it keeps for the way back.
        return gradient.reshape(x.shape).clone()

    def push_forward(self, x: Tensor, along: Tensor) -> Tensor:
        return along.flatten(1)

    def backward(self, x: Tensor, along: Tensor, gradient: Tensor, bar: Tensor) -> Tensor:
        return bar.reshape(x.shape)


class SideBySide:
    """Several contractions, each with its own part of a flat X and of D."""

    def __init__(self, parts: Sequence[Contraction], squares: tuple[Square, ...] = ()) -> None:
        self._parts, self.squares = tuple(parts), squares
        self._sizes = [prod(part.shape) for part in parts]
        self._widths = [part.n_out for part in parts]
        self.shape: tuple[int, ...] = (sum(self._sizes),)
        self.n_out = sum(self._widths)

    def folded(self) -> SideBySide:
        parts = [part.folded() for part in self._parts]
        starts = itertools.accumulate(self._widths, initial=0)
        squares = [
            Square(start + square.start, square.side)
            for part, start in zip(parts, starts, strict=False)
            for square in part.squares
        ]
        return SideBySide(parts, tuple(squares))

    def value(self, x: Tensor) -> Tensor:
        return torch.cat([part.value(own) for part, own in zip(self._parts, self._x(x), strict=True)], dim=1)

    def pull_back(self, x: Tensor, gradient: Tensor) -> Tensor:
        pieces = zip(self._parts, self._x(x), self._d(gradient), strict=True)
        return torch.cat([part.pull_back(own, g).flatten(1) for part, own, g in pieces], dim=1)

    def push_forward(self, x: Tensor, along: Tensor) -> Tensor:
        pieces = zip(self._parts, self._x(x), self._x(along), strict=True)
        return torch.cat([part.push_forward(own, y) for part, own, y in pieces], dim=1)

    def backward(self, x: Tensor, along: Tensor, gradient: Tensor, bar: Tensor) -> Tensor:
        pieces = zip(self._parts, self._x(x), self._x(along), self._d(gradient), self._d(bar), strict=True)
        return torch.cat([part.backward(own, y, g, b).flatten(1) for part, own, y, g, b in pieces], dim=1)

    def _x(self, x: Tensor) -> list[Tensor]:
        pieces = zip(self._parts, x.split(self._sizes, dim=1), strict=True)
        return [own.contiguous().view(-1, *part.shape) for part, own in pieces]

    def _d(self, d: Tensor) -> list[Tensor]:
        return [own.contiguous() for own in d.split(self._widths, dim=1)]
