"""Embedding nets at the nodes of splines: some dozen numbers each, of which a step must not take notice.

By tensor operations a net of three layers is thirty of them, forwards and back, and each takes longer than what it
computes. So where `CompiledNets` can be used, these nets are compiled code too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.network.blockwise import layers_of
from lockstep.network.compiled_loops import kernels_for, net_kernels
from lockstep.network.mlp import MLP
from lockstep.products.openblas import OpenBlas, loaded
from lockstep.team import rows_in_shares

_WORTH_IT = 512
"""Nodes that make some fifty microseconds of a loop, for which another thread gains more than it costs."""


def node_coefficients(nets: Sequence[MLP], nodes: Tensor, which: Sequence[int], fit: Tensor) -> Tensor:
    """[groups, size, width] the spline coefficients of nets of one shape, in the precision of the nodes.

    Args:
        nodes: [groups, nodes] what the nets are given; nothing is differentiated by it.
        which: for each group the number of its net.
        fit: [size, nodes] from values at the nodes to coefficients.
    """
    tanh = all(layer.activation_name == "tanh" for layer in layers_of(nets[0]))
    library = loaded() if tanh and kernels_for(nodes) else None
    if library is None:
        values = torch.stack([nets[k].value(own.unsqueeze(1)) for k, own in zip(which, nodes, strict=True)])
        return fit @ values
    weights = [weight for net in nets for weight in net.parameters()]
    result: Tensor = _Coefficients.apply(library, nets, nodes, np.asarray(which), fit, *weights)
    return result


class _Coefficients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, library: OpenBlas, nets: Sequence[MLP], nodes: Tensor, which: NDArray, fit: Tensor, *weights: Tensor
    ) -> Tensor:
        flat = torch.cat([part for net in nets for part in _parts(net)]).to(nodes.dtype).view(len(nets), -1)
        shape = _shape_of(tuple((layer.n_in, layer.n_out, layer.copies) for layer in layers_of(nets[0])))
        # Tensors are kept, because others may free them; what the loops are given are their numbers.
        ctx.library, ctx.held = library, (flat, nodes, fit)
        work = np.empty((5, nodes.numel() * int(shape[:, 1].sum())), flat.numpy().dtype)
        ctx.given = library.address(nodes.dtype), flat.numpy(), shape, which, fit.numpy(), nodes.reshape(-1, 1).numpy()
        ctx.work, ctx.like = work, [(weight.shape, weight.dtype, weight.requires_grad) for weight in weights]
        ctx.idts = [layer.idt is not None for net in nets for layer in layers_of(net)]
        result = nodes.new_empty(nodes.shape[0], fit.shape[0], int(shape[-1, 1]))
        out, loop = result.numpy(), net_kernels().node_coefficients
        _for_nets(library, lambda own: loop(*ctx.given, own, work, out), flat, nodes)
        return result

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor | None, ...]:
        flat, nodes, _ = ctx.held
        sums, loop = torch.zeros_like(flat), net_kernels().node_gradients
        arrays = bars[0].contiguous().numpy(), sums.numpy()
        _for_nets(ctx.library, lambda own: loop(*ctx.given, own, ctx.work, *arrays), flat, nodes)
        return None, None, None, None, None, *_cotangents(sums, ctx.given[2], ctx.idts, ctx.like)


def _parts(net: MLP) -> list[Tensor]:
    """W, b and idt of one layer after the other, in one row each."""
    parts = []
    for layer in layers_of(net):
        idt = torch.ones_like(layer.bias) if layer.idt is None else layer.idt
        parts += [layer.weight.view(-1), layer.bias, idt]
    return parts


def _cotangents(
    sums: Tensor, shape: NDArray, idts: Sequence[bool], like: Sequence[tuple[torch.Size, torch.dtype, bool]]
) -> list[Tensor | None]:
    """Of all weights, in the order of `parameters()`."""
    sizes = [size for n_in, n_out, _ in shape.tolist() for size in (n_in * n_out, n_out, n_out)]
    kept = [there for idt in idts for there in (True, True, idt)]
    pieces = [piece for piece, there in zip(sums.view(-1).split(sizes * len(sums)), kept, strict=True) if there]
    return [
        piece.view(shape).to(dtype) if wanted else None
        for piece, (shape, dtype, wanted) in zip(pieces, like, strict=True)
    ]


def _for_nets(library: OpenBlas, run: Callable[[tuple[int, int]], None], flat: Tensor, nodes: Tensor) -> None:
    """Call `run` with ranges of nets, several at once where they have many nodes."""
    least = -(-_WORTH_IT * len(flat) // nodes.numel())
    with library.alone():
        rows_in_shares(lambda own: run((own.start, own.stop)), len(flat), max(1, least))


@lru_cache(maxsize=64)
def _shape_of(layers: tuple[tuple[int, int, int], ...]) -> NDArray[np.int64]:
    return np.array(layers)
