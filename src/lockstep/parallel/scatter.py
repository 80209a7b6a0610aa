"""Ranks of one node that share out what follows the backward pass, through memory that all of them see.

The sum of all gradients on every rank, and the same update of all weights on every rank, are the same work done as
often as there are ranks. Here each adds up one part of the gradients, straight from where the ranks have computed them,
updates that part of the weights, and takes over the others' parts: two meetings, and no message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from mmap import mmap
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.parallel.engines.nodes import this_node
from lockstep.parallel.engines.shared_sum import LINE, Turnstile, open_shared
from lockstep.parallel.group import Group

_TAIL = 1024
"""Numbers of a rank that have room beside its gradients."""


class Piece(NamedTuple):
    """Some numbers of a parameter, and their place among those of all."""

    name: str
    numbers: slice
    place: slice


class NodeMemory:
    """Memory that the ranks of a node share, for parameters of one type, laid one after the other.

    Attributes:
        gradients: [rank, numbers] where each rank computes its own.
        tails: [rank, _TAIL] float64, further numbers to be added up; of the first of them they are the counts.
        weights: [rank, numbers] where each rank has its own, for the others to take over what it has updated.
        mean: [part] the mean of all gradients in this rank's part.
        pieces: [rank] of which parameters the part of each rank consists.
    """

    def __init__(self, memory: mmap, parameters: Mapping[str, Parameter], group: Group) -> None:
        dtype, numbers = _kind(parameters)
        starts = _starts(dtype, numbers, group.size)

        def tensor(place: int, kind: torch.dtype, *shape: int) -> Tensor:
            return torch.frombuffer(memory, dtype=kind, offset=starts[place], count=math.prod(shape)).view(shape)

        self._group, self._turnstile = group, Turnstile(memory, starts[0], group.rank, group.size)
        self.tails = tensor(1, torch.float64, group.size, _TAIL)
        self.gradients, self.weights = (tensor(place, dtype, group.size, numbers) for place in (2, 3))
        each = -(-numbers // group.size)
        parts = [slice(min(rank * each, numbers), min((rank + 1) * each, numbers)) for rank in range(group.size)]
        self.pieces = [list(_pieces(parameters, part)) for part in parts]
        self._parts, self._own = parts, parts[group.rank]
        self._hold(parameters)
        self.mean = torch.zeros(self._own.stop - self._own.start, dtype=dtype)

    @classmethod
    def of(cls, parameters: Mapping[str, Parameter], group: Group) -> NodeMemory | None:
        """None, on all ranks, where they do not share a node, or where it has too little memory. All must call it."""
        kinds = {(parameter.dtype, parameter.device.type) for parameter in parameters.values()}
        suitable = group.size > 1 and Turnstile.usable and len(kinds) == 1 and {kind for _, kind in kinds} == {"cpu"}
        if not suitable or len({*group.all_gather_object(this_node())}) > 1:
            return None
        nbytes = _starts(*_kind(parameters), group.size)[-1]
        memory = open_shared(nbytes, group.rank, group.all_gather_object)
        return None if memory is None else cls(memory, parameters, group)

    @torch.no_grad()
    def _hold(self, parameters: Mapping[str, Parameter]) -> None:
        """Move this rank's weights here."""
        pieces = self.weights[self._group.rank].split([parameter.numel() for parameter in parameters.values()])
        for parameter, piece in zip(parameters.values(), pieces, strict=True):
            parameter.data = piece.view(parameter.shape).copy_(parameter)

    def gather(self) -> Tensor:
        """Meet, and fill `mean`; the sums of the tails. No rank writes to gradients and tails again before `spread`."""
        sums: Tensor = self._group.in_memory(
            "MPI_Reduce_scatter", self.mean, self._turnstile.pass_through, self._add_up
        )
        return sums

    def spread(self) -> None:
        """Meet, when all have updated their part of the weights, and take over those of the others."""
        own = self.weights[self._group.rank]
        self._group.in_memory("MPI_Allgather", own, self._turnstile.pass_through, self._take)

    def place_in_mean(self, piece: Piece) -> Tensor:
        """The mean gradient of a piece of this rank."""
        return self.mean[piece.place.start - self._own.start : piece.place.stop - self._own.start]

    def _take(self) -> None:
        own = self.weights[self._group.rank]
        for rank, part in enumerate(self._parts):
            if rank != self._group.rank:
                own[part] = self.weights[rank, part]

    def _add_up(self) -> Tensor:
        first, second, *others = self.gradients[:, self._own].unbind()
        torch.add(first, second, out=self.mean)
        for other in others:
            self.mean.add_(other)
        sums = self.tails.sum(dim=0)
        if sums[0] != 1.0:
            self.mean.div_(sums[0])
        return sums


def _kind(parameters: Mapping[str, Parameter]) -> tuple[torch.dtype, int]:
    """Type and number of all numbers."""
    return next(iter(parameters.values())).dtype, sum(parameter.numel() for parameter in parameters.values())


def _starts(dtype: torch.dtype, numbers: int, size: int) -> list[int]:
    """Where turnstile, tails, gradients and weights begin, and where all ends."""
    starts = [0]
    for nbytes in (size * LINE, size * _TAIL * 8, *[size * numbers * dtype.itemsize] * 2):
        starts.append(starts[-1] + -(-nbytes // LINE) * LINE)
    return starts


def _pieces(parameters: Mapping[str, Parameter], part: slice) -> Iterable[Piece]:
    start = 0
    for name, parameter in parameters.items():
        low, high = max(part.start, start), min(part.stop, start + parameter.numel())
        if low < high:
            yield Piece(name, slice(low - start, high - start), slice(low, high))
        start += parameter.numel()
