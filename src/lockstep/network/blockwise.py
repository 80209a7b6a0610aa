"""Several nets of the same shape at once, each for its own rows: products block by block, all else for all rows.

One net for each type would otherwise mean as many small operations for each type, and copies to put the results
together. Forward and backward passes are written out by hand; weight gradients go straight to where they are summed.

For a layer y = act(x W + b) * idt (+ x), with slope s = act' * idt and the gradient g of the energy:
    forward    x -> y;    q = g s,  g <- q W^T (+ g)
    backward   of the second line first, from the cotangent of g upwards; then of the first line, downwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lockstep.gradbuffer import buffer_of
from lockstep.network.folding import Piece, Square, pieces_of
from lockstep.network.mlp import MLP, Layer
from lockstep.products import add_mm, mm


class Block(NamedTuple):
    """Rows (centres of one type, say) and the net that serves them."""

    rows: slice
    net: MLP


def layers_of(net: MLP) -> list[Layer]:
    return [layer for layer in net.layers if isinstance(layer, Layer)]


def products(x: Tensor, matrices: Sequence[tuple[slice, Tensor]]) -> Tensor:
    """x[rows] @ matrix for each block of rows, [rows, n_out]."""
    result: Tensor = _Products.apply(x, [rows for rows, _ in matrices], *(matrix for _, matrix in matrices))
    return result


def net_by_net(by_layer: Iterable[list[list[Tensor | None]]]) -> list[Tensor | None]:
    """Weights' cotangents, gathered [layer][net][weight], in the order of all nets' `parameters()`."""
    return [weight for of_net in zip(*by_layer, strict=True) for of_layer in of_net for weight in of_layer]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: list[slice], *matrices: Tensor) -> Tensor:
        ctx.blocks = blocks
        ctx.save_for_backward(x, *matrices)
        result = x.new_empty(x.shape[0], matrices[0].shape[1])
        for rows, matrix in zip(blocks, matrices, strict=True):
            mm(x[rows], matrix, out=result[rows])
        return result

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        (bar,) = bars
        x, *matrices = ctx.saved_tensors
        x_bar = None
        if ctx.needs_input_grad[0]:
            x_bar = torch.empty_like(x)
            for rows, matrix in zip(ctx.blocks, matrices, strict=True):
                mm(bar[rows], matrix.T, out=x_bar[rows])
        of_matrices = [mm(x[rows].T, bar[rows], out=bar.new_empty(x.shape[1], bar.shape[1])) for rows in ctx.blocks]
        return (x_bar, None, *of_matrices)


class LayerPass:
    """One layer of all nets: matrix products block by block, everything else for all rows at once.

    Holds what the way forward leaves behind: the input, x W + b, the activation's value and slope (times idt); then,
    from the way back, the gradient g and q = g s.
    """

    gradient: Tensor
    scaled_gradient: Tensor

    def __init__(
        self, blocks: Sequence[Block], layers: Sequence[Layer], x: Tensor, squares: Sequence[Square] = ()
    ) -> None:
        self.layer = layers[0]
        pieces = pieces_of(self.layer.n_in, squares)
        self._parts = [_Part(block.rows, layer, x.dtype, pieces) for block, layer in zip(blocks, layers, strict=True)]
        self.x = x
        self.before = self._times_weight(x)
        for part in self._parts:
            self.before[part.rows].add_(part.bias)
        self.value = self.layer.activation.value(self.before)
        self.slope = self.layer.activation.slope(self.before, self.value)

    def output(self) -> Tensor:
        """y, the next layer's input."""
        return self.layer.with_residual(self._times_idt(self.value), self.x)

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """dE/dx from dE/dy."""
        self.gradient = gradient
        self.scaled_gradient = self._times_idt_(gradient * self.slope)
        return self.layer.through_residual(self._times_transposed(self.scaled_gradient), gradient)

    def gradient_backward(self, bar: Tensor) -> tuple[Tensor, Tensor]:
        """Cotangents of dE/dy and of the slope times idt, from that of dE/dx."""
        self._add_to_weights(bar, self.scaled_gradient)
        scaled_bar = self._times_weight(bar)
        slope_bar = scaled_bar * self.gradient
        return self.layer.with_residual(self._times_idt_(scaled_bar.mul_(self.slope)), bar), slope_bar

    def backward(self, bar: Tensor, slope_bar: Tensor) -> tuple[Tensor, list[list[Tensor | None]]]:
        """Cotangent of x, and for each block those of the layer's weights, in the order of `parameters()`."""
        curvature = self.layer.activation.curvature(self.before, self.value, self.slope)
        before_bar = (bar * self.slope).addcmul_(slope_bar, curvature)
        idt_bar = None if self.layer.idt is None else (bar * self.value).addcmul_(slope_bar, self.slope)
        self._times_idt_(before_bar)
        self._add_to_weights(self.x, before_bar)
        of_layers = []
        for part in self._parts:
            of_layers.append([part.sum.rest(), before_bar[part.rows].sum(dim=0)])
            if idt_bar is not None:
                of_layers[-1].append(idt_bar[part.rows].sum(dim=0))
        return self.layer.through_residual(self._times_transposed(before_bar), bar), of_layers

    def _times_weight(self, x: Tensor) -> Tensor:
        """x W."""
        result = x.new_empty(x.shape[0], self.layer.n_out)
        for part in self._parts:
            (piece, factor), *others = part.factors
            out = mm(x[part.rows, piece.columns], factor, out=result[part.rows])
            for piece, factor in others:
                add_mm(x[part.rows, piece.columns], factor, out=out)
        return result

    def _times_transposed(self, y: Tensor) -> Tensor:
        """y W^T."""
        result = torch.empty_like(self.x)
        for part in self._parts:
            for piece, factor in part.factors:
                mm(y[part.rows], factor.T, out=result[part.rows, piece.columns])
        return result

    def _times_idt(self, y: Tensor) -> Tensor:
        return y if self.layer.idt is None else self._times_idt_(y.clone())

    def _times_idt_(self, y: Tensor) -> Tensor:
        """y * idt, in place."""
        for part in self._parts:
            if part.idt is not None:
                y[part.rows].mul_(part.idt)
        return y

    def _add_to_weights(self, left: Tensor, right: Tensor) -> None:
        """Add left^T right to the weights' cotangents."""
        for part in self._parts:
            part.sum.add(left[part.rows], right[part.rows])


class _Part:
    """One net's layer: its rows, its weights in the precision of the products, its largest weight's cotangent."""

    def __init__(self, rows: slice, layer: Layer, dtype: torch.dtype, pieces: Sequence[Piece]) -> None:
        self.rows = rows
        weight = layer.weight.detach().to(dtype)
        self.factors = [(piece, piece.of(weight)) for piece in pieces]
        self.bias = layer.bias.detach().to(dtype)
        self.idt = None if layer.idt is None else layer.idt.detach().to(dtype)
        self.sum = _WeightSum(layer.weight, pieces)


class _WeightSum:
    """The sum of products that is a weight's cotangent.

    Where the weight has a buffer for its gradient, the products go straight into it and autograd is told of none. If
    they are of another precision, their sum is cast once.
    """

    def __init__(self, weight: Tensor, pieces: Sequence[Piece]) -> None:
        self._buffer, self._pieces = buffer_of(weight), pieces
        self._wanted, self._shape = weight.requires_grad, weight.shape
        self._result: Tensor | None = None

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add left^T right, where `left` is what the layer is given or its cotangent."""
        if not self._wanted:
            return
        target, first = self._target(left)
        for piece in self._pieces:
            rows, columns = target[piece.rows], left[:, piece.columns].T
            if piece.square is not None:
                piece.put(mm(columns, right, out=right.new_empty(columns.shape[0], right.shape[1])), rows, first)
            elif first:
                mm(columns, right, out=rows)
            else:
                add_mm(columns, right, out=rows)

    def rest(self) -> Tensor | None:
        """What autograd has to be told of. Asked for once, when all products have been added."""
        if self._buffer is None:
            return self._result
        if self._result is not None:
            self._buffer.add(self._result)
        return None

    def _target(self, like: Tensor) -> tuple[Tensor, bool]:
        """What products of the precision of `like` go into, and whether they are the first to."""
        if self._buffer is not None and self._buffer.view.dtype == like.dtype:
            return self._buffer.view, self._buffer.claim()
        first = self._result is None
        if self._result is None:
            self._result = like.new_empty(self._shape)
        return self._result, first
