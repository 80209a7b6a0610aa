"""Adam over one part of all numbers on each rank of a node, wherever the bounds of the parameters are.

That is the least that a rank can have to do, and the state is shared out with the work. It goes by the number, which an
optimizer can that treats each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.optim.adam import Adam, check_belongs

if TYPE_CHECKING:
    from lockstep.config.optimizer import AdamConfig, AdamWConfig
    from lockstep.parallel.group import Group
    from lockstep.parallel.scatter import NodeMemory


class ScatteredAdam:
    """Updates this rank's part of the weights by the mean gradients in `memory`, and takes over the others' parts."""

    def __init__(
        self, parameters: Mapping[str, Parameter], config: AdamConfig | AdamWConfig, memory: NodeMemory, group: Group
    ) -> None:
        self._parameters, self._memory, self._group = parameters, memory, group
        self._flat = {name: parameter.detach().view(-1) for name, parameter in parameters.items()}
        self._own = {piece.name: piece for piece in memory.pieces[group.rank]}
        shares = {name: Parameter(self._flat[name][piece.numbers]) for name, piece in self._own.items()}
        for name, share in shares.items():
            share.grad = memory.place_in_mean(self._own[name])
        self._adam = Adam(shares, config, shares)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of all weights, after the gradients have been averaged. All ranks call it."""
        self._adam.step(lr)
        self._memory.spread()

    def tensors(self) -> dict[str, Tensor]:
        """The state of all parameters, on all ranks: a message for each of its quantities."""
        own = self._adam.tensors()
        names: set[str] = set().union(*self._group.all_gather_object(set(own)))
        return {key: self._whole(key, own.get(key)) for key in sorted(names, key=self._order)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Each rank takes its part; what is nobody's is refused by all of them."""
        mine: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            name, _, quantity = key.rpartition(".")
            check_belongs(name, quantity, tensor, self._parameters)
            if name in self._own:
                mine[key] = tensor.reshape(-1)[self._own[name].numbers] if tensor.ndim else tensor
        self._adam.load(mine)

    def _order(self, key: str) -> tuple[int, str]:
        name, _, quantity = key.rpartition(".")
        return list(self._parameters).index(name), quantity

    def _whole(self, key: str, share: Tensor | None) -> Tensor:
        """A quantity of a parameter from the shares of all ranks: a sum, to which each gives nothing but its own."""
        name, _, quantity = key.rpartition(".")
        if quantity == "step":
            steps = self._group.all_gather_object(None if share is None else float(share))
            return torch.tensor(next(step for step in steps if step is not None), dtype=torch.float32)
        whole = torch.zeros_like(self._flat[name])
        if share is not None:
            whole[self._own[name].numbers] = share
        self._group.all_reduce(whole)
        return whole.view(self._parameters[name].shape)
