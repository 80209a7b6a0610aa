"""What an optimizer is to the rest of the program, and the table from which one is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.optim.adam import Adam

if TYPE_CHECKING:
    from lockstep.config.optimizer import OptimizerConfig
    from lockstep.parallel.group import Group


class Optimizer(Protocol):
    """Updates weights by their gradients, which are the same on all ranks.

    The state is plain named tensors, because a checkpoint holds tensors and JSON, nothing that has to be unpickled. It
    does not depend on the number of ranks: what some of them wrote, any number of them goes on from.
    """

    def step(self, lr: float) -> None:
        """One update at learning rate `lr`. All ranks call it: the weights are the same on all of them afterwards."""

    def tensors(self) -> dict[str, Tensor]:
        """The whole state as `<parameter>.<quantity>` -> tensor (not copied); empty before the first update.

        All ranks call it: they may have to bring it together.
        """

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` gave, bit for bit, the step counters included."""


OPTIMIZERS = {"Adam": Adam, "AdamW": Adam}
"""By the `type` of the input file's `optimizer` section: what makes one from parameters and that section."""


def make_optimizer(
    named_parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig, group: Group
) -> Optimizer:
    """The optimizer of the input file over those of the parameters that are trainable."""
    parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
    return OPTIMIZERS[config.type](parameters, config)


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> Tensor | None:
    """Scale all gradients down together when their norm exceeds `max_norm`; return what the norm was.

    A `max_norm` of 0 leaves them alone and spares the norm. It stays on the device: whoever looks pays for the wait.
    """
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm) if max_norm > 0 else None
