"""A step of the Kalman filter, which measures several quantities of a micro-batch and learns from each in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from lockstep.phases import BACKWARD, DATA, FORWARD, OPTIMIZER
from lockstep.tasks import Metrics
from lockstep.training.loop import Trainer

if TYPE_CHECKING:
    from lockstep.optim.kalman import KalmanFilter


class Signal(Protocol):
    """A measurement: what is predicted, to be differentiated, by how much it falls short, and all errors beside it."""

    predicted: Tensor
    error: Tensor
    metrics: Metrics


class Measured(Protocol):
    """What a task must have for it."""

    signals: int

    def signal(self, sample: Any, number: int, step: int, done: float, lr: float) -> Signal:
        """One of the measurements of a sample; `done` is what part of the training is over, `lr` for its errors."""


@dataclass
class KalmanTrainer(Trainer):
    """A run with a Kalman filter: each signal is measured with the weights that the one before has left."""

    extras: ClassVar[int] = 1
    task: Measured  # type: ignore[assignment]
    optimizer: KalmanFilter  # type: ignore[assignment]

    def step(self, step: int) -> Metrics:
        """One micro-batch of every rank; returns the errors before the first update."""
        self.group.phases.enter(DATA)
        samples = [next(self.samples)[1] for _ in range(self.accumulate)]
        first, *_ = [self._filter(samples, number, step) for number in range(self.task.signals)]
        return first

    def _filter(self, samples: list[Any], number: int, step: int) -> Metrics:
        self.averager.zero()
        signals = [self._measure(sample, number, step) for sample in samples]
        metrics, error = self._together(signals)
        self.group.phases.enter(OPTIMIZER)
        own, averager = signals[0].metrics.values[0], self.averager
        self.verdict.note(step + 1, (metrics.values[0], own), (averager.total, averager.own), averager.stopping)
        self.optimizer.step(error)
        return metrics

    def _measure(self, sample: Any, number: int, step: int) -> Signal:
        self.group.phases.enter(FORWARD)
        signal = self.task.signal(sample, number, step, step / self.numb_steps, self.schedule.lr(step))
        self.group.phases.enter(BACKWARD)
        signal.predicted.backward()
        return signal

    def _together(self, signals: list[Signal]) -> tuple[Metrics, Tensor]:
        """Average gradients and errors over the micro-batches of all ranks."""
        metrics = signals[0].metrics
        for signal in signals[1:]:
            metrics = metrics + signal.metrics
        error = torch.stack([signal.error.double() for signal in signals]).sum()
        sums = self.averager.average(len(signals), torch.cat([metrics.values, error[None]]))
        return Metrics(metrics.columns, sums[:-1]), sums[-1] / (len(signals) * self.group.size)
