"""An optimizer's work and state, shared out among the ranks: what ZeRO calls stage 1.

All ranks have the same gradients after they were averaged. Every parameter then needs one rank only that updates it,
and keeps what the optimizer remembers of it; the others are sent its new weights. That is worth a message of the size
of the weights where an update costs much (SOAP), or where memory is short.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from lockstep.optim.optimizer import Optimizer
    from lockstep.parallel.group import Group


def assign_owners(costs: Mapping[str, float], ranks: int) -> dict[str, int]:
    """An owner for every parameter: the most expensive first, always to the rank that has the least to do.

    A function of costs and names alone, so that all ranks find the same.
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    owners = {}
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        load, rank = heapq.heappop(loads)
        owners[name] = rank
        heapq.heappush(loads, (load + costs[name], rank))
    return owners


class SharedOptimizer:
    """Has this rank's own parameters updated, and brings the weights of all ranks together in one message.

    Args:
        make: makes the optimizer that updates the parameters of these names.
    """

    def __init__(
        self,
        make: Callable[[Collection[str]], Optimizer],
        parameters: Mapping[str, Parameter],
        owners: Mapping[str, int],
        group: Group,
    ) -> None:
        self._owners, self._group = owners, group
        self._own = make([name for name in parameters if owners[name] == group.rank])
        kinds = sorted({parameter.dtype for parameter in parameters.values()}, key=str)
        self._messages = [_Message(parameters, owners, group.rank, kind) for kind in kinds]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update what is this rank's own, and take over the rest."""
        self._own.step(lr)
        for message in self._messages:
            message.exchange(self._group)

    def tensors(self) -> dict[str, Tensor]:
        """The state of all parameters, on all ranks: one message for each rank and type of number."""
        own = self._own.tensors()
        contents = self._group.all_gather_object([(name, tuple(t.shape), t.dtype) for name, t in own.items()])
        device = self._messages[0].device
        whole: dict[str, Tensor] = {}
        for root, content in enumerate(contents):
            for kind in dict.fromkeys(dtype for *_, dtype in content):
                shapes = {name: shape for name, shape, dtype in content if dtype == kind}
                whole |= self._broadcast(root, kind, shapes, own, device)
        return whole

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Each rank takes what is its own; what is nobody's is refused by all of them."""
        rank = self._group.rank
        self._own.load({k: t for k, t in tensors.items() if self._owners.get(k.rpartition(".")[0], rank) == rank})

    def _broadcast(
        self,
        root: int,
        kind: torch.dtype,
        shapes: dict[str, tuple[int, ...]],
        own: Mapping[str, Tensor],
        device: torch.device,
    ) -> dict[str, Tensor]:
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        if root == self._group.rank:
            flat = torch.cat([own[name].reshape(-1).to(device) for name in shapes])
        else:
            flat = torch.empty(sum(sizes), dtype=kind, device=device)
        self._group.broadcast(flat, root)
        return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), flat.split(sizes), strict=True)}


class _Message:
    """The weights of one type of number, one after the other in order of their owners.

    Each rank fills in its own and leaves zeros elsewhere, so that the sum over the ranks, which every group knows how
    to form quickly, has all of them to the last bit.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], owners: Mapping[str, int], rank: int, kind: torch.dtype
    ) -> None:
        names = sorted((n for n, p in parameters.items() if p.dtype == kind), key=lambda name: (owners[name], name))
        self._weights = [parameters[name].detach() for name in names]
        sizes = [weight.numel() for weight in self._weights]
        self.device = self._weights[0].device
        self._buffer = torch.zeros(sum(sizes), dtype=kind, device=self.device)
        pieces = self._buffer.split(sizes)
        self._views = [piece.view(weight.shape) for piece, weight in zip(pieces, self._weights, strict=True)]
        self._mine = [owners[name] == rank for name in names]

    def exchange(self, group: Group) -> None:
        for mine, view, weight in zip(self._mine, self._views, self._weights, strict=True):
            view.copy_(weight) if mine else view.zero_()
        group.all_reduce(self._buffer)
        for view, weight in zip(self._views, self._weights, strict=True):
            weight.copy_(view)
