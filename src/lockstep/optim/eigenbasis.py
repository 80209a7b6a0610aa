"""One side of a weight matrix: the running covariance of its gradients there, and the basis that makes it diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TIE_BREAK = 1e-4
"""How far apart directions without a gradient are held, as a fraction of the factor's mean eigenvalue."""
SHIFT = 1e-6
"""Eigenvalues below this fraction of the largest are rounding in float32."""


@dataclass
class Side:
    """Rows (0) or columns (1) of a matrix.

    Attributes:
        number: 0 or 1.
        factor: running mean of G G^T, or of G^T G.
        basis: about its eigenvectors, as columns, those of the largest eigenvalues first.
    """

    number: int
    factor: Tensor
    basis: Tensor

    @classmethod
    def first(cls, number: int, gradient: Tensor, decay: float) -> Side:
        """From the first gradient: its own eigenvectors."""
        product = _product(number, gradient)
        size = product.shape[0]
        # Directions without a gradient have no order of their own. They are given one, in float64, so that another
        # number of ranks, whose gradients differ in the last bit, finds the same basis.
        order = torch.linspace(TIE_BREAK, 0, size, dtype=torch.float64, device=product.device) / size
        broken = product.double() + torch.diag(order * product.diagonal().sum())
        basis = torch.linalg.eigh(broken)[1].flip(1).to(product.dtype).contiguous()
        return cls(number, product * (1 - decay), basis)

    @staticmethod
    def names(number: int) -> tuple[str, str]:
        """Names of the two tensors in a checkpoint."""
        side = ("left", "right")[number]
        return f"factor_{side}", f"basis_{side}"

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names(self.number), (self.factor, self.basis), strict=True))

    def observe(self, gradient: Tensor, decay: float) -> None:
        """Take a gradient into the running mean."""
        self.factor.mul_(decay).add_(_product(self.number, gradient), alpha=1 - decay)

    def into(self, matrix: Tensor, out: Tensor) -> Tensor:
        """A matrix with this side in the eigenbasis."""
        return _multiplied(self.number, self.basis.T, matrix, self.basis, out)

    def out_of(self, matrix: Tensor, out: Tensor) -> Tensor:
        """The way back."""
        return _multiplied(self.number, self.basis, matrix, self.basis.T, out)

    def refresh(self, mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        """One power iteration: the basis turns towards the factor's eigenvectors, and two moments with it.

        First moments are vectors and turn with the basis. Of second moments only the order of the directions is
        followed: the basis turns little, and they are running means themselves.
        """
        powered = self.factor @ self.basis
        values = (self.basis * powered).sum(dim=0)
        order = values.argsort(descending=True)
        # Where the factor is zero but for rounding, directions stay instead of going anywhere.
        powered += SHIFT * values.max() * self.basis
        basis = torch.linalg.qr(powered[:, order])[0].contiguous()
        turn = self.basis.T @ basis
        self.basis = basis
        if self.number == 0:
            return turn.T @ mean, square.index_select(0, order)
        return mean @ turn, square.index_select(1, order)


def _product(number: int, gradient: Tensor) -> Tensor:
    return gradient @ gradient.T if number == 0 else gradient.T @ gradient


def _multiplied(number: int, left: Tensor, matrix: Tensor, right: Tensor, out: Tensor) -> Tensor:
    return torch.mm(left, matrix, out=out) if number == 0 else torch.mm(matrix, right, out=out)
