"""One side of a weight matrix: running covariances of its gradients there, and the bases that make them diagonal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.products import mm

TIE_BREAK = 1e-4
"""How far apart directions without a gradient are held, as a fraction of the factor's mean eigenvalue."""
SHIFT = 1e-6
"""Eigenvalues below this fraction of the largest are rounding in float32."""


class Block(NamedTuple):
    """A part of a side.

    Attributes:
        factor: running mean of G G^T, or of G^T G.
        basis: about its eigenvectors, as columns, those of the largest eigenvalues first.
    """

    factor: Tensor
    basis: Tensor


class Side:
    """Rows (0) or columns (1) of a matrix, cut into blocks that are nearly equal.

    What correlates rows or columns of different blocks is left out: products then cost a fraction.
    """

    def __init__(self, number: int, blocks: Sequence[Block]) -> None:
        self.number, self._blocks = number, list(blocks)

    @classmethod
    def first(cls, number: int, gradient: Tensor, n_blocks: int, decay: float) -> Side:
        """From the first gradient: its own eigenvectors."""
        return cls(number, [_first(number, part, decay) for part in gradient.tensor_split(n_blocks, dim=number)])

    @classmethod
    def restored(cls, number: int, n_blocks: int, tensors: Mapping[str, Tensor]) -> Side:
        """From what `tensors` gave."""
        names = cls.names(number, n_blocks)
        return cls(number, [Block(*(tensors[name] for name in pair)) for pair in names])

    @staticmethod
    def names(number: int, n_blocks: int) -> list[tuple[str, str]]:
        """Names of the two tensors of each block in a checkpoint."""
        side = ("left", "right")[number]
        numbers = ["", *(f"_{block}" for block in range(1, n_blocks))]
        return [(f"factor_{side}{block}", f"basis_{side}{block}") for block in numbers]

    @classmethod
    def shapes(cls, number: int, n_blocks: int, length: int) -> dict[str, torch.Size]:
        """What `tensors` gives of a side of this length."""
        widths = [part.shape[0] for part in torch.empty(length, device="meta").tensor_split(n_blocks)]
        pairs = zip(cls.names(number, n_blocks), widths, strict=True)
        return {name: torch.Size([width, width]) for names, width in pairs for name in names}

    def tensors(self) -> dict[str, Tensor]:
        names = self.names(self.number, len(self._blocks))
        return {n: t for own, block in zip(names, self._blocks, strict=True) for n, t in zip(own, block, strict=True)}

    def observe(self, gradient: Tensor, decay: float) -> None:
        """Take a gradient into the running means."""
        for block, part in zip(self._blocks, self._cut(gradient), strict=True):
            block.factor.mul_(decay).add_(_product(self.number, part), alpha=1 - decay)

    def into(self, matrix: Tensor, out: Tensor) -> Tensor:
        """A matrix with this side in the eigenbases."""
        for block, part, result in zip(self._blocks, self._cut(matrix), self._cut(out), strict=True):
            _multiply(self.number, block.basis.T, part, block.basis, result)
        return out

    def out_of(self, matrix: Tensor, out: Tensor) -> Tensor:
        """The way back."""
        for block, part, result in zip(self._blocks, self._cut(matrix), self._cut(out), strict=True):
            _multiply(self.number, block.basis, part, block.basis.T, result)
        return out

    def refresh(self, mean: Tensor, square: Tensor) -> None:
        """One power iteration: the bases turn towards the factors' eigenvectors, and two moments with them."""
        parts = zip(self._cut(mean), self._cut(square), strict=True)
        self._blocks = [_refreshed(self.number, b, *own) for b, own in zip(self._blocks, parts, strict=True)]

    def _cut(self, matrix: Tensor) -> Sequence[Tensor]:
        return matrix.tensor_split(len(self._blocks), dim=self.number)


def _first(number: int, gradient: Tensor, decay: float) -> Block:
    # Directions without a gradient have no order of their own. They are given one, and all of this is float64, so that
    # another number of ranks or another library, whose gradients differ in the last bit, finds the same basis.
    product = _product(number, gradient.double())
    size = product.shape[0]
    order = torch.linspace(TIE_BREAK, 0, size, dtype=torch.float64, device=product.device) / size
    broken = product + torch.diag(order * product.diagonal().sum())
    basis = torch.linalg.eigh(broken)[1].flip(1).to(gradient.dtype).contiguous()
    return Block((product * (1 - decay)).to(gradient.dtype), basis)


def _refreshed(number: int, block: Block, mean: Tensor, square: Tensor) -> Block:
    """First moments are vectors and turn with the basis. Of second moments only the order of the directions is
    followed: the basis turns little, and they are running means themselves."""
    powered = _times(block.factor, block.basis)
    values = (block.basis * powered).sum(dim=0)
    order = values.argsort(descending=True)
    # Where the factor is zero but for rounding, directions stay instead of going anywhere.
    powered += SHIFT * values.max() * block.basis
    basis = torch.linalg.qr(powered[:, order])[0].contiguous()
    turn = _times(block.basis.T, basis)
    mean.copy_(_times(turn.T, mean) if number == 0 else _times(mean, turn))
    square.copy_(square.index_select(number, order))
    return Block(block.factor, basis)


def _product(number: int, gradient: Tensor) -> Tensor:
    return _times(gradient, gradient.T) if number == 0 else _times(gradient.T, gradient)


def _multiply(number: int, left: Tensor, matrix: Tensor, right: Tensor, out: Tensor) -> None:
    mm(left, matrix, out=out) if number == 0 else mm(matrix, right, out=out)


def _times(left: Tensor, right: Tensor) -> Tensor:
    return mm(left, right, out=left.new_empty(left.shape[0], right.shape[1]))
