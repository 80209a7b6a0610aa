"""The learning rate as a pure function of the step.

A schedule holds no state: `lr(step)` may be asked for any step in any order, so a restart has nothing to
restore and two ranks cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.errors import InputError

if TYPE_CHECKING:
    from lockstep.config.learning_rate import (
        ExpLearningRate,
        LearningRateConfig,
        WsdLearningRate,
    )

# exp cannot reach a learning rate of zero; below this the decay rate is that of a run ending here.
_SMALLEST_STOP = 1e-10


@dataclass(frozen=True)
class ExpDecay:
    """start_lr * rate^(step / period), the exponent rounded down to whole periods unless `smooth`."""

    start_lr: float
    stop_lr: float
    rate: float
    period: int
    smooth: bool

    def __call__(self, step: float) -> float:
        exponent = step / self.period if self.smooth else step // self.period
        return max(self.start_lr * self.rate**exponent, self.stop_lr)


@dataclass(frozen=True)
class CosineDecay:
    """Half a cosine wave from start_lr to stop_lr over `length` steps, then stop_lr."""

    start_lr: float
    stop_lr: float
    length: int

    def __call__(self, step: float) -> float:
        if self.length == 0:
            return self.start_lr
        return _cosine(self.start_lr, self.stop_lr, min(step / self.length, 1.0))


@dataclass(frozen=True)
class WsdDecay:
    """start_lr for `stable` steps, then a decay of `length` steps along the curve `shape`, then stop_lr."""

    start_lr: float
    stop_lr: float
    stable: int
    length: int
    shape: Callable[[float, float, float], float]

    def __call__(self, step: float) -> float:
        progress = min(max((step - self.stable) / self.length, 0.0), 1.0)
        return self.shape(self.start_lr, self.stop_lr, progress)


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up, then a decay, both multiplied by `factor` (the scaling with the number of workers).

    It is `offset` steps further than the run, which was started on another number of workers.

    Attributes:
        length: steps of the decay.
        delay: a power by which the decay comes later: the share x of its steps leads as far as x ** `delay` does
            without one. 1 for none.
    """

    decay: ExpDecay | CosineDecay | WsdDecay
    warmup_steps: int
    warmup_start_lr: float
    factor: float
    offset: int = 0
    length: int = 1
    delay: float = 1.0

    @property
    def start_lr(self) -> float:
        """The rate at the end of the warm-up: what the loss measures `lr(step)` against."""
        return self.decay.start_lr * self.factor

    def lr(self, step: int) -> float:
        """The learning rate of the update that takes the weights from `step` to `step + 1`."""
        step += self.offset
        if step < self.warmup_steps:
            rise = (self.decay.start_lr - self.warmup_start_lr) * (step / self.warmup_steps)
            return (self.warmup_start_lr + rise) * self.factor
        return self.decay(self._delayed(step - self.warmup_steps)) * self.factor

    def _delayed(self, step: int) -> float:
        if self.delay == 1 or step >= self.length:
            return step
        return self.length * (step / self.length) ** self.delay


def make_schedule(
    config: LearningRateConfig, numb_steps: int, factor: float = 1.0, offset: int = 0, delay: float = 1.0
) -> Schedule:
    """The schedule of a run of `numb_steps` steps, warm-up included."""
    warmup_steps = _warmup_steps(config, numb_steps)
    return Schedule(
        decay=_make_decay(config, numb_steps - warmup_steps, numb_steps),
        warmup_steps=warmup_steps,
        warmup_start_lr=config.warmup_start_factor * config.start_lr,
        factor=factor,
        offset=offset,
        length=numb_steps - warmup_steps,
        delay=delay,
    )


def _warmup_steps(config: LearningRateConfig, numb_steps: int) -> int:
    by_ratio = config.warmup_ratio is not None
    steps = int(config.warmup_ratio * numb_steps) if config.warmup_ratio is not None else config.warmup_steps
    if steps == 0 or steps < numb_steps:
        return steps
    raise InputError(
        f"a warm-up of {steps} steps leaves nothing of a training of {numb_steps} steps",
        where="learning_rate.warmup_ratio" if by_ratio else "learning_rate.warmup_steps",
        value=config.warmup_ratio if by_ratio else config.warmup_steps,
        remedy="shorten the warm-up or raise training.numb_steps",
    )


def _make_decay(config: LearningRateConfig, length: int, numb_steps: int) -> ExpDecay | CosineDecay | WsdDecay:
    if config.type == "exp":
        return _exp(config, length)
    if config.type == "cosine":
        return CosineDecay(config.start_lr, config.final_lr, length)
    return _wsd(config, length, numb_steps)


def _exp(config: ExpLearningRate, length: int) -> ExpDecay:
    period = config.decay_steps
    if config.decay_rate is None and period >= length:
        period = 100 if length // 10 > 100 else length // 100 + 1
    rate = config.decay_rate
    if rate is None:
        # As exp(log), not as a power: the last bit then agrees with DeePMD-kit's.
        ratio = max(config.final_lr, _SMALLEST_STOP) / config.start_lr
        rate = math.exp(math.log(ratio) / (length / period)) if length else 1.0
    return ExpDecay(config.start_lr, config.final_lr, rate, period, config.smooth)


def _wsd(config: WsdLearningRate, length: int, numb_steps: int) -> WsdDecay:
    decay = max(1, min(int(config.decay_phase_ratio * numb_steps), length))
    return WsdDecay(config.start_lr, config.final_lr, length - decay, decay, _SHAPES[config.decay_type])


def _cosine(start: float, stop: float, progress: float) -> float:
    return stop + (start - stop) * 0.5 * (1.0 + math.cos(math.pi * progress))


def _linear(start: float, stop: float, progress: float) -> float:
    return start + (stop - start) * progress


def _inverse_linear(start: float, stop: float, progress: float) -> float:
    return 1.0 / (progress / stop + (1.0 - progress) / start)


_SHAPES = {"inverse_linear": _inverse_linear, "cosine": _cosine, "linear": _linear}
