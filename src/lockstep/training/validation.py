"""Errors on the validation data, shared out among the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lockstep.data import JointPlan, Plan, Stream
from lockstep.data.joint import Turns
from lockstep.parallel.group import Group
from lockstep.tasks import Metrics, Task

_SEED = 1
"""Validation draws its own stream, the same in all runs, so that their errors can be compared."""


@dataclass
class Validator:
    """Validates on `batches` micro-batches of the validation data at a time.

    Which ones is a function of how often validation came before, so that a restarted run goes on with those that an
    uninterrupted one would have taken.
    """

    task: Task
    plan: Plan
    stream: Stream | Turns
    batches: int
    group: Group

    @classmethod
    def of(cls, task: Task, plan: Plan, batches: int, group: Group) -> Validator:
        """With several models, as many micro-batches of each."""
        if isinstance(plan, JointPlan):
            return cls(task, plan, plan.turns(_SEED), batches * len(plan.parts), group)
        return cls(task, plan, plan.stream(_SEED), batches, group)

    def __call__(self, turn: int, lr: float) -> dict[str, float]:
        """The errors of validation number `turn` (from 0), over the micro-batches of all ranks."""
        columns = self.task.columns
        device = next(self.task.module.parameters()).device
        total = Metrics(columns, torch.zeros(2 * len(columns), dtype=torch.float64, device=device))
        first = turn * self.batches
        for number in range(first + self.group.rank, first + self.batches, self.group.size):
            system, frames = self.stream.at(number)
            sample = self.task.prepare_validation(self.plan.dataset.read(system, frames, number))
            total = total + self.task.evaluate(sample, lr)
        return Metrics(columns, self.group.sum(total.values)).shown()


class NoValidation:
    """For runs without validation data."""

    def __call__(self, turn: int, lr: float) -> None:
        return None
