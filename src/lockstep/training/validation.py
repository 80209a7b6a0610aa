"""Errors on the validation data, shared out among the ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lockstep.data import Plan, Stream
from lockstep.model import Potential
from lockstep.parallel.group import Group
from lockstep.tasks.energy.loss import EnergyLoss, Metrics
from lockstep.tasks.energy.prepare import Sample


class Validator:
    """Validates on `batches` micro-batches of the validation data at a time.

    Which ones is a function of how often validation came before, so that a restarted run goes on with those that an
    uninterrupted one would have taken.
    """

    def __init__(
        self,
        plan: Plan,
        stream: Stream,
        batches: int,
        prepare: Callable[..., Sample],
        potential: Potential,
        loss: EnergyLoss,
        group: Group,
    ) -> None:
        self._dataset, self._stream, self._batches = plan.dataset, stream, batches
        self._prepare, self._potential, self._loss, self._group = prepare, potential, loss, group

    @torch.no_grad()
    def __call__(self, turn: int, lr: float) -> dict[str, float]:
        """The errors of validation number `turn` (from 0), over the micro-batches of all ranks."""
        names = self._loss.names
        total = Metrics(names, torch.zeros(2 * len(names), dtype=torch.float64, device=self._potential.device))
        first = turn * self._batches
        for number in range(first + self._group.rank, first + self._batches, self._group.size):
            system, frames = self._stream.at(number)
            sample = self._prepare(self._dataset.read(system, frames, number))
            prediction = self._potential(sample.environment, sample.parameters)
            total = total + self._loss(prediction, sample.labels, lr, sample.real).metrics
        return Metrics(names, self._group.sum(total.values)).rmse()


class NoValidation:
    """For runs without validation data."""

    def __call__(self, turn: int, lr: float) -> None:
        return None
