"""The training loop, as a table of contents: each line of it is one verb, and the components know when to act."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lockstep.data import MicroBatch
from lockstep.optim.optimizer import Optimizer, clip_gradients
from lockstep.optim.schedule import Schedule
from lockstep.parallel.watch.faults import Stopped
from lockstep.phases import BACKWARD, DATA, FORWARD, OPTIMIZER, OUTPUT
from lockstep.tasks import Metrics, Task

if TYPE_CHECKING:
    from lockstep.parallel.gradients import GradientAverager
    from lockstep.parallel.group import Group
    from lockstep.parallel.mesh import Mesh
    from lockstep.training.average import Average
    from lockstep.training.outputs import Outputs
    from lockstep.training.verdict import Verdict

Samples = Iterator[tuple[MicroBatch, Any]]


@dataclass
class Trainer:
    """A run: what is trained, data, and what becomes of them.

    Attributes:
        verdict: whether the run may go on.
        samples: this rank's share of the stream, from `first_step` on, as the task has prepared it.
        accumulate: micro-batches whose gradients are averaged in a step, on each rank.
        max_norm: the gradient is scaled down to this norm where it is longer; 0 leaves it alone.
        extras: numbers that travel with the gradients, beside the errors.
    """

    extras: ClassVar[int] = 0
    task: Task
    schedule: Schedule
    optimizer: Optimizer
    averager: GradientAverager
    verdict: Verdict
    samples: Samples
    outputs: Outputs
    mesh: Mesh
    average: Average
    first_step: int
    numb_steps: int
    accumulate: int = 1
    max_norm: float = 0.0

    def run(self) -> None:
        """Train from `first_step` to the end."""
        self.outputs.begin(self.first_step, self.numb_steps)
        for step in range(self.first_step, self.numb_steps):
            self.group.progress.at(step + 1, OPTIMIZER)
            metrics = self.step(step)
            self.average.update(step + 1)
            self.task.after_update(step + 1)
            self.group.phases.enter(OUTPUT)
            self.outputs.show(step + 1, self.schedule.lr(step), metrics)
            stopping = self.verdict.stopping and step + 1 < self.numb_steps
            self.outputs.save(step + 1, anyway=stopping)
            if stopping:
                raise Stopped(step + 1)
        self.outputs.end()

    def step(self, step: int) -> Metrics:
        """One update of the weights; returns the errors before it, over the micro-batches of all ranks."""
        lr = self.schedule.lr(step)
        self.averager.zero()
        metrics = self.gradients(lr)
        for _ in range(self.accumulate - 1):
            metrics = metrics + self.gradients(lr)
        own, metrics = metrics, self.averaged(metrics)
        self.group.phases.enter(OPTIMIZER)
        averager = self.averager
        loss, gradient = (metrics.values[0], own.values[0]), (averager.total, averager.own)
        self.verdict.note(step + 1, loss, gradient, averager.stopping)
        clip_gradients(self.task.module.parameters(), self.max_norm)
        self.optimizer.step(lr)
        return metrics

    def averaged(self, own: Metrics) -> Metrics:
        """Average all ranks' gradients; the errors of all ranks, each micro-batch counted once."""
        frame = self.mesh.frame
        counted = own.values if frame.rank == 0 else own.values * 0.0
        return Metrics(own.columns, self.averager.average(self.accumulate / frame.size, counted))

    @property
    def group(self) -> Group:
        """All ranks."""
        return self.mesh.world

    def gradients(self, lr: float) -> Metrics:
        """Add the gradients of this rank's next micro-batch."""
        phases = self.group.phases
        phases.enter(DATA)
        _, sample = next(self.samples)
        phases.enter(FORWARD)
        terms = self.task.loss(sample, lr)
        phases.enter(BACKWARD)
        terms.total.backward()
        return terms.metrics
