"""A running average of the weights, beside those that are trained."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from torch import Tensor, nn

from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.errors import taken_apart
from lockstep.model.weights import AVERAGE

log = logging.getLogger(__name__)

_EARLY = 10
"""After ten times this many steps the average reaches back over this many, and so on; `decay` ends that."""


class Average(Protocol):
    """What the loop and checkpoints know of an average."""

    def update(self, step: int) -> None:
        """The weights have moved, for the `step`-th time."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by the weights' names."""


class NoAverage:
    """None was asked for."""

    def update(self, step: int) -> None:
        pass

    def tensors(self) -> dict[str, Tensor]:
        return {}


class WeightAverage:
    """What every update leaves is `decay` of the average before it, and the rest of the weights after it.

    Less is left early on, so that the average reaches back over about a tenth of the steps so far: else a short run
    would end with an average that still has a part of the random weights it began with, and is worth nothing.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._weights = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self._average = {name: each.detach().clone() for name, each in self._weights.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self._decay, step / (step + _EARLY))
        torch._foreach_lerp_(list(self._average.values()), list(self._weights.values()), 1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        return {f"{AVERAGE}.{name}": tensor for name, tensor in self._average.items()}

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on with the average of a checkpoint; where it has none, with the weights as they are now."""
        saved = checkpoint.group(AVERAGE)
        if not saved:
            log.info("average of the weights: %s has none, it begins with the present weights", checkpoint.path)
            return
        with taken_apart(checkpoint.path):
            for name, tensor in self._average.items():
                tensor.copy_(saved[name])


def build_average(config: AnyInput, module: nn.Module, checkpoint: Checkpoint | None) -> Average:
    """The average that the input asks for, of weights that are in place."""
    if not config.training.enable_ema:
        if checkpoint is not None and checkpoint.group(AVERAGE):
            log.warning("%s has an average of the weights: it ends here, without training.enable_ema", checkpoint.path)
        return NoAverage()
    average = WeightAverage(module, config.training.ema_decay)
    log.info("average of the weights: kept too, decay %g (training.ema_decay)", config.training.ema_decay)
    if checkpoint is not None:
        average.load(checkpoint)
    return average
