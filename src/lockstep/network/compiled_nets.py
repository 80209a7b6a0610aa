"""The way of several nets forward and back as compiled code: products and all that stands between them.

What `head.py` does by some hundred tensor operations is five calls here, for nets whose activation is tanh, on a CPU,
where NumPy's OpenBLAS is there to multiply. The rows of every net are shared out among the threads, each of which goes
all the way with its own; only for products that sum over rows they wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.gradbuffer import buffer_of
from lockstep.network.blockwise import Block, layers_of
from lockstep.network.compiled_loops import kernels_for, net_kernels
from lockstep.network.folding import Piece, Square, pieces_of
from lockstep.network.mlp import MLP
from lockstep.products.openblas import loaded
from lockstep.team import in_shares, n_shares

_WORTH_IT = 1 << 19
"""Multiplications, some ten microseconds of them, that are worth another thread."""


def usable(blocks: Sequence[Block], x: Tensor) -> bool:
    """Whether these nets can be evaluated here."""
    hidden = layers_of(blocks[0].net)[:-1]
    tanh = all(layer.activation_name == "tanh" for layer in hidden)
    return bool(hidden) and tanh and kernels_for(x) is not None and loaded() is not None


class CompiledNets:
    """The way of all nets forward and back. They serve different rows, one block after the other, and have the same
    shape. `NetsPass` is the same by tensor operations."""

    def __init__(self, blocks: list[Block], x: Tensor, squares: Sequence[Square]) -> None:
        library = loaded()
        assert library is not None
        self._kernels, self._library, self._x = net_kernels(), library, x
        self._shape = shape = _shape_of(_widths(blocks[0].net), tuple(squares))
        self._nets = [_Net(block, x.dtype, shape) for block in blocks]
        self._ends = np.array([blocks[0].rows.start, *(block.rows.stop for block in blocks)])
        factors = np.array([[factor.data_ptr() for factor in net.factors] for net in self._nets])
        self._small = torch.stack([net.small for net in self._nets])
        self._layout = factors, shape.columns, shape.first_piece, shape.layers, self._small.numpy(), self._ends
        self._work = x.new_empty(5, len(x) * int(shape.layers[:, 1].sum()))
        self._multiplications = len(x) * int((shape.layers[:, 0] * shape.layers[:, 1]).sum())
        self._results = {"gradient": torch.empty_like(x), "energy": x.new_empty(len(x))}
        arrays = x.numpy(), self._work.numpy(), *(result.numpy() for result in self._results.values())
        self._in_shares(lambda *share: self._kernels.nets_forward(*self._given, *arrays, *share))

    def energies(self) -> Tensor:
        """Not kept here: what autograd returns must not be held by what it keeps for the way back."""
        return self._results.pop("energy")

    def pulled_back(self) -> Tensor:
        """dE/d(input) of each centre."""
        return self._results.pop("gradient")

    def backward(self, energy_bar: Tensor, gradient_bar: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Cotangents of the input and, net by net in the order of `parameters()`, of the weights."""
        kernels, work, energy = self._kernels, self._work.numpy(), energy_bar.contiguous().numpy()
        given: tuple[Any, ...] = gradient_bar.numpy(), energy, work
        of_last = self._sums(
            self._shape.sizes[-1],
            lambda bars, *share: kernels.nets_gradient_backward(*self._given, *given, bars, *share),
        )
        targets = [[_Target(weight, self._x.dtype) for weight in net.weights] for net in self._nets]
        places = np.array([[place for target in of_net for place in target.places] for of_net in targets])
        keeps = np.array([[keep for target in of_net for keep in target.keeps] for of_net in targets])
        self._add_to_weights(places, keeps, given[0], kernels.BAR)
        # Not held when another array of this size is made: there may be little room for both.
        given = ()
        del gradient_bar
        result = torch.empty_like(self._x)
        below = result.numpy()
        of_small = self._sums(
            self._small.shape[1],
            lambda bars, *share: kernels.nets_backward(*self._given, energy, work, below, bars, *share),
        )
        self._add_to_weights(places, np.ones_like(keeps), self._x.numpy(), kernels.OUTPUT)
        by_net = zip(self._nets, targets, of_small, of_last, strict=True)
        return result, [bar for net, *bars in by_net for bar in net.cotangents(*bars)]

    @property
    def _given(self) -> tuple[Any, ...]:
        return self._library.address(self._x.dtype), *self._layout

    def _sums(self, width: int, run: Callable[..., None]) -> Tensor:
        """[net, width] what all shares add up."""
        shares = self._shares()
        sums = self._x.new_zeros(shares, len(self._nets), width)
        arrays = sums.numpy()
        self._in_shares(lambda share, of: run(arrays[share], share, of))
        return sums[0] if shares == 1 else sums.sum(dim=0)

    def _add_to_weights(self, places: NDArray, keeps: NDArray, left: NDArray, kind: int) -> None:
        """Products that sum over all rows: of `left` in the first layer, in others of what is in place of `kind`."""
        routine, _, columns, first_piece, shape, _, ends = self._given
        layout = routine, places, keeps, columns, first_piece, shape, ends, left, kind, self._work.numpy()
        self._in_shares(lambda *share: self._kernels.nets_weight_bars(*layout, *share))

    def _shares(self) -> int:
        return n_shares(self._multiplications, _WORTH_IT)

    def _in_shares(self, run: Callable[[int, int], None]) -> None:
        """Call `run` with the number of each share and how many there are."""
        shares = self._shares()
        with self._library.alone():
            in_shares(lambda share: run(share, shares), range(shares))


_Widths = tuple[int, int, int]
"""Of a layer: widths of input and output, and how often the one is added to the other."""


def _widths(net: MLP) -> tuple[_Widths, ...]:
    hidden = layers_of(net)[:-1]
    return tuple((layer.n_in, layer.n_out, layer.copies) for layer in hidden)


class _Shape:
    """What nets of one shape have in common.

    Attributes:
        pieces: of each hidden layer's matrix.
        columns: [piece, 2] of the layer's input that a piece belongs to, from where to where.
        first_piece: [hidden layer + 1] the number of its first piece.
        layers: [hidden layer, 3] their `_Widths`.
        sizes: of biases and idts, layer by layer, and of the last layer's weight and bias together.
    """

    def __init__(self, layers: Sequence[_Widths], squares: Sequence[Square]) -> None:
        self.pieces = [pieces_of(n_in, () if number else squares) for number, (n_in, _, _) in enumerate(layers)]
        self.first_piece = np.cumsum([0, *map(len, self.pieces)])
        columns = [piece.columns for of_layer in self.pieces for piece in of_layer]
        self.columns = np.array([[each.start, each.stop] for each in columns])
        self.layers = np.array(layers)
        self.sizes = [*(n_out for _, n_out, _ in layers for _ in range(2)), layers[-1][1] + 1]


_shape_of = lru_cache(maxsize=64)(_Shape)


class _Net:
    """One net: its matrices cut into pieces, and all smaller weights in one row."""

    def __init__(self, block: Block, dtype: torch.dtype, shape: _Shape) -> None:
        *self.hidden, outputs = layers_of(block.net)
        self._sizes = shape.sizes
        self.weights = [(layer.weight, pieces) for layer, pieces in zip(self.hidden, shape.pieces, strict=True)]
        self.factors = [piece.of(weight.detach().to(dtype)) for weight, pieces in self.weights for piece in pieces]
        small: list[Tensor] = []
        for layer in self.hidden:
            small += [layer.bias, torch.ones_like(layer.bias) if layer.idt is None else layer.idt]
        self.small = torch.cat([*small, outputs.weight.view(-1), outputs.bias]).detach().to(dtype)

    def cotangents(self, targets: Sequence[_Target], of_small: Tensor, of_last: Tensor) -> list[Tensor | None]:
        """Those of all weights, in the order of `parameters()`."""
        found: list[Tensor | None] = []
        pieces = iter(of_small.split(self._sizes))
        for layer, target in zip(self.hidden, targets, strict=True):
            found += [target.rest(), next(pieces)]
            of_idt = next(pieces)
            found += [] if layer.idt is None else [of_idt]
        return [*found, of_last[:-1].unsqueeze(1), of_last[-1:]]


class _Target:
    """Where the cotangent of a matrix is wanted, piece by piece.

    Attributes:
        places: addresses of what the products of each piece go into; 0 where nothing is wanted.
        keeps: whether the first product is added to what is there.
    """

    def __init__(self, matrix: tuple[Tensor, list[Piece]], dtype: torch.dtype) -> None:
        weight, pieces = matrix
        self.places, self.keeps = [0] * len(pieces), [False] * len(pieces)
        self._squares: list[tuple[Piece, Tensor]] = []
        self._buffer, self._result = buffer_of(weight), None
        self._wanted = weight.requires_grad
        if not self._wanted:
            return
        self._first = True
        if self._buffer is not None and self._buffer.view.dtype == dtype:
            self._out, self._first = self._buffer.view, self._buffer.claim()
        else:
            self._out = self._result = weight.new_empty(weight.shape, dtype=dtype)
        for number, piece in enumerate(pieces):
            if piece.square is None:
                self.places[number], self.keeps[number] = self._out[piece.rows].data_ptr(), not self._first
            else:
                product = self._out.new_empty(piece.square.n_kept, self._out.shape[1])
                self._squares.append((piece, product))
                self.places[number] = product.data_ptr()

    def rest(self) -> Tensor | None:
        """What autograd has to be told of. Asked for once, when all products have been added."""
        for piece, product in self._squares:
            piece.put(product, self._out[piece.rows], self._first)
        if self._buffer is None or self._result is None:
            return self._result
        self._buffer.add(self._result)
        return None
