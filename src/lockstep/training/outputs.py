"""What a run shows and keeps: learning curve, log lines, TensorBoard, checkpoints. Each knows when it is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor

from lockstep.observe.live import Bar, NullBar
from lockstep.phases import CHECKPOINT, VALIDATION, Phases
from lockstep.tasks import Metrics
from lockstep.training.full_validation import AtIntervals

log = logging.getLogger(__name__)

Snapshot = Callable[[int, Metrics | None], tuple[dict[str, Tensor], dict[str, Any]]]
"""From a step and the error sums since the last display to what a checkpoint holds: tensors and JSON."""


class Curve(Protocol):
    def write(
        self, step: int, lr: float, train: Mapping[str, float], valid: Mapping[str, float] | None = None
    ) -> None: ...


class Store(Protocol):
    """Keeps checkpoints, on the disk some time after `save` has returned; see `lockstep.checkpoint.background`."""

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None: ...

    def check(self) -> None: ...

    def wait(self) -> None: ...


class Scalars(Protocol):
    """A writer of named numbers, such as TensorBoard's."""

    def write(self, step: int, lr: float, metrics: Metrics) -> None: ...


class TimeKeeper(Protocol):
    """Tells at every display where the time went; see `lockstep.observe.budget`."""

    def begin(self, step: int) -> None: ...

    def show(self, step: int) -> None: ...


@dataclass
class Display:
    """When to show errors, and how long steps take between two displays."""

    frequency: int
    timing: bool
    numb_steps: int = 0
    _began: float = 0.0
    _last_step: int = 0
    _tested: float = 0.0
    _rates: list[float] = field(default_factory=list)
    _warm: tuple[int, float] | None = None

    def begin(self, step: int, numb_steps: int) -> None:
        self.numb_steps, self._last_step, self._began = numb_steps, step, time.perf_counter()

    def count(self, step: int) -> None:
        """Note the end of `step`. The first of a process compiles and warms up: it tells nothing about the others."""
        self._warm = self._warm or (step, time.perf_counter())

    def due(self, step: int) -> bool:
        return step == 1 or step % self.frequency == 0

    def turn(self, step: int) -> int:
        """How many displays came before the one at `step`."""
        return step // self.frequency if self.frequency > 1 else step - 1

    def tested(self, seconds: float) -> None:
        self._tested = seconds

    def lap(self, step: int) -> str:
        """The line on time since the last display, with the estimate of what is left."""
        now = time.perf_counter()
        spent = now - self._began - self._tested
        first, since = max(self._warm or (step, now), (self._last_step, self._began))
        if step > first:
            self._rates = [*self._rates[-9:], (now - since) / (step - first)]
        line = f"batch {step:7d} training time {spent:.2f} s, testing time {self._tested:.2f} s"
        if self._rates:
            left = sum(self._rates) / len(self._rates) * (self.numb_steps - step)
            line += f", eta = {timedelta(seconds=round(left))}"
        self._began, self._last_step, self._tested = now, step, 0.0
        return line


class Outputs:
    """Everything a step leaves behind.

    Args:
        snapshot: gives what a checkpoint holds. All ranks call it: it compares their weights.
        average: show training errors averaged since the last display instead of those of one step.
        interval: error sums since the last display, when going on from a checkpoint.
        settle: makes sure that the step is sound, before it is shown or saved.
    """

    def __init__(
        self,
        *,
        curve: Curve,
        store: Store,
        scalars: Scalars,
        budget: TimeKeeper,
        phases: Phases,
        display: Display,
        validate: Callable[[int, float], dict[str, float] | None],
        validate_all: AtIntervals,
        snapshot: Snapshot,
        save_freq: int,
        average: bool,
        interval: Metrics | None = None,
        settle: Callable[[], None] = lambda: None,
        bar: Bar | NullBar | None = None,
    ) -> None:
        self._curve, self._store, self._scalars, self._display = curve, store, scalars, display
        self._budget, self._phases = budget, phases
        self._validate, self._validate_all, self._snapshot = validate, validate_all, snapshot
        self._save_freq, self._average = save_freq, average
        self._bar, self._settle = bar or NullBar(), settle
        self._numb_steps = 0
        self._interval = interval

    def begin(self, step: int, numb_steps: int) -> None:
        self._numb_steps = numb_steps
        self._display.begin(step, numb_steps)
        self._bar.begin(step, numb_steps)
        self._started = time.perf_counter()
        if numb_steps > step:
            log.info("Start to train %d steps.", numb_steps - step)
        else:
            log.info("Nothing is left to train: %d steps are done, and %d were asked for", step, numb_steps)
        self._budget.begin(step)

    def show(self, step: int, lr: float, metrics: Metrics) -> None:
        """Show the errors of `step` where they are asked for."""
        self._display.count(step)
        self._bar.update(step)
        self._scalars.write(step, lr, metrics)
        self._validate_fully(step, lr)
        if self._average:
            metrics = self._interval = metrics if self._interval is None else self._interval + metrics
        if not self._display.due(step):
            return
        self._settle()
        self._interval = None
        began = time.perf_counter()
        with self._phases(VALIDATION):
            valid = self._validate(self._display.turn(step), lr)
        self._display.tested(time.perf_counter() - began)
        train = metrics.shown()
        self._curve.write(step, lr, train, valid)
        log.info("Batch %7d: trn: %s, lr = %8.2e", step, _listing(train), lr)
        if valid is not None:
            log.info("Batch %7d: val: %s", step, _listing(valid))
        if self._display.timing:
            log.info(self._display.lap(step))
        self._budget.show(step)
        self._bar.note(train, valid)

    def _validate_fully(self, step: int, lr: float) -> None:
        if not self._validate_all.due(step):
            return
        self._settle()
        with self._phases(VALIDATION):
            self._validate_all(step, lr)

    def save(self, step: int, anyway: bool = False) -> None:
        """Begin to write a checkpoint where one is due, or `anyway`; tell when an earlier one could not be written."""
        self._store.check()
        if step % self._save_freq and step != self._numb_steps and not anyway:
            return
        self._settle()
        with self._phases(CHECKPOINT):
            self._store.save(step, *self._snapshot(step, self._interval))

    def end(self) -> None:
        with self._phases(CHECKPOINT):
            self._store.wait()
        self._bar.end()
        log.info("finished training")
        log.info("wall time: %.3f s", time.perf_counter() - self._started)


def _listing(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:8.2e}" for name, value in errors.items())
