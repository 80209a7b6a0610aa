"""What an optimizer is to the rest of the program, and the table from which one is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.optim.adam import Adam
from lockstep.optim.scattered import ScatteredAdam
from lockstep.optim.sharing import SharedOptimizer, assign_owners
from lockstep.optim.soap import Soap
from lockstep.parallel.scatter import NodeMemory

if TYPE_CHECKING:
    from lockstep.config.optimizer import AdamConfig, AdamWConfig, OptimizerConfig
    from lockstep.parallel.group import Group

log = logging.getLogger(__name__)


class State(Protocol):
    """What an optimizer remembers.

    It is plain named tensors, because a checkpoint holds tensors and JSON, nothing that has to be unpickled. It does
    not depend on the number of ranks: what some of them wrote, any number of them goes on from.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The whole state as `<parameter>.<quantity>` -> tensor (not copied); empty before the first update.

        All ranks call it: they may have to bring it together.
        """

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` gave, bit for bit, the step counters included."""


class Optimizer(State, Protocol):
    """Updates weights by their gradients, which are the same on all ranks."""

    def step(self, lr: float) -> None:
        """One update at learning rate `lr`. All ranks call it: the weights are the same on all of them afterwards."""


class Entry(NamedTuple):
    """How an optimizer is made.

    Attributes:
        make: from all trainable parameters, the input file's section, and the names of those to update. Has a `cost`.
        shared: whether ranks share its work unasked, because an update costs more than sending the weights.
        by_number: whether each number is updated by itself, so that a rank can have any part of a parameter.
    """

    make: Any
    shared: bool
    by_number: bool


OPTIMIZERS = {
    "Adam": Entry(Adam, shared=False, by_number=True),
    "AdamW": Entry(Adam, shared=False, by_number=True),
    "SOAP": Entry(Soap, shared=True, by_number=False),
}
"""By the `type` of the input file's `optimizer` section."""


def make_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]],
    config: OptimizerConfig,
    group: Group,
    zero_stage: int = 0,
    memory: NodeMemory | None = None,
) -> Optimizer:
    """The optimizer of the input file over those of the parameters that are trainable.

    Each of several ranks updates and remembers a share of them, where that is asked for (`zero_stage` 1) or worth it,
    or where they have `memory` in common, which is for optimizers that go by the number.
    """
    parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
    make, shared, _ = OPTIMIZERS[config.type]
    if memory is not None:
        log.info("optimizer: %s, its work and state shared among %d ranks, in memory", config.type, group.size)
        return ScatteredAdam(parameters, cast("AdamConfig | AdamWConfig", config), memory, group)
    if group.size == 1 or not (shared or zero_stage):
        optimizer: Optimizer = make(parameters, config, parameters)
        return optimizer
    costs = {name: make.cost(parameter, config) for name, parameter in parameters.items()}
    owners = assign_owners(costs, group.size)
    log.info(
        "optimizer: %s, its work and state shared among %d ranks: %s", config.type, group.size, _loads(costs, owners)
    )
    return SharedOptimizer(lambda own: make(parameters, config, own), parameters, owners, group)


def node_memory(
    named_parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig, group: Group
) -> NodeMemory | None:
    """Memory in which the ranks of one node share an optimizer's work, if it is one that can be shared by number."""
    parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
    by_number = config.type in OPTIMIZERS and OPTIMIZERS[config.type].by_number
    return NodeMemory.of(parameters, group) if by_number and parameters else None


def _loads(costs: Mapping[str, float], owners: Mapping[str, int]) -> str:
    """What part of the work each rank has."""
    loads = dict.fromkeys(sorted(set(owners.values())), 0.0)
    for name, rank in owners.items():
        loads[rank] += costs[name]
    return ", ".join(f"{100 * load / sum(costs.values()):.0f} %" for load in loads.values())


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> Tensor | None:
    """Scale all gradients down together when their norm exceeds `max_norm`; return what the norm was.

    A `max_norm` of 0 leaves them alone and spares the norm. It stays on the device: whoever looks pays for the wait.
    """
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm) if max_norm > 0 else None
