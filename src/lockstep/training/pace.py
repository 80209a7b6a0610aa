"""What more workers mean for the learning rate and the number of steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.config import AnyInput
from lockstep.config.optimizer import OptimizerConfig, SoapConfig
from lockstep.data import Plan
from lockstep.optim.schedule import Schedule

log = logging.getLogger(__name__)

SOAP_RATES = (2e-4, 5e-3)
"""Learning rates at the start, times a tenth of `rate_factor`, outside of which SOAP was seen to fail."""


def soap_rates(optimizer: SoapConfig) -> tuple[float, float]:
    """The same for its own `rate_factor`."""
    low, high = (bound * 10 / optimizer.rate_factor for bound in SOAP_RATES)
    return low, high


def worker_factor(rule: str, workers: int) -> float:
    """What the learning rate is multiplied by: the workers' number, its square root, or one."""
    return {"linear": float(workers), "sqrt": math.sqrt(workers), "none": 1.0}[rule]


def rate_factor(config: AnyInput, workers: int) -> float:
    """The same for a run. Under `auto` it goes by the micro-batches of a step: Adam's rate grows with their number,
    SOAP's with the eighth root of it, as far as there is room before it fails."""
    if config.learning_rate.scale_by_worker != "auto":
        return worker_factor(config.learning_rate.scale_by_worker, workers)
    n = float(workers * config.training.acc_freq)
    if config.optimizer.type != "SOAP":
        return n
    return max(1.0, min(n**0.125, soap_rates(config.optimizer)[1] / config.learning_rate.start_lr))


def decay_delay(config: AnyInput, workers: int) -> float:
    """The power by which the learning rate's decay comes later: under `auto`, SOAP's by the root of the micro-batches
    of a step. The small rates at the end average noise away, of which such a step has less; what it lacks is distance.
    """
    if config.learning_rate.scale_by_worker != "auto" or config.optimizer.type != "SOAP":
        return 1.0
    return math.sqrt(workers * config.training.acc_freq)


def optimizer_for(config: AnyInput, workers: int) -> OptimizerConfig:
    """The optimizer section. Under `auto`, SOAP looks back over fewer steps where each has more micro-batches.

    A step of n micro-batches has less noise to be averaged away by the steps before it, and the run has fewer of them:
    decays are raised to the power of the root of n, and intervals divided by it.
    """
    optimizer, n = config.optimizer, workers * config.training.acc_freq
    if config.learning_rate.scale_by_worker != "auto" or n == 1 or optimizer.type != "SOAP":
        return optimizer
    root = math.sqrt(n)
    update: dict[str, float] = {key: getattr(optimizer, key) ** root for key in ("beta1", "beta2", "factor_decay")}
    update |= {key: max(1, round(getattr(optimizer, key) / root)) for key in ("frequency", "factor_frequency")}
    settings = ", ".join(f"{key} {value:.3g}" for key, value in update.items())
    log.info("optimizer: SOAP, with %d micro-batches a step: %s", n, settings)
    return optimizer.model_copy(update=update)


def warn_about_rate(config: AnyInput, start_lr: float) -> None:
    """Say where a learning rate is an order of magnitude off for SOAP, which fails there where Adam is only slow."""
    if config.optimizer.type != "SOAP":
        return
    low, high = soap_rates(config.optimizer)
    if start_lr < low:
        log.warning("learning_rate.start_lr: %.3g is far too small for SOAP; 1e-3 to 3e-3 is usual", start_lr)
    elif start_lr > high:
        log.warning(
            "learning_rate.start_lr: %.3g, workers counted in, is too large for SOAP; 1e-3 to 3e-3 is usual, which"
            " scale_by_worker: auto raises no further than %.3g",
            start_lr,
            high,
        )


def scale_steps(config: AnyInput, workers: int) -> AnyInput:
    """Divide steps and intervals by the workers where the input file asks for it: the run then sees as many samples."""
    if workers == 1 or not config.training.scale_steps_by_worker:
        return config
    training = config.training
    update = {name: _divided(getattr(training, name), workers) for name in ("numb_steps", "disp_freq", "save_freq")}
    rate = config.learning_rate
    rate_update = {
        name: _divided(getattr(rate, name), workers)
        for name in ("decay_steps", "warmup_steps")
        if getattr(rate, name, None)
    }
    return config.model_copy(
        update={"training": training.model_copy(update=update), "learning_rate": rate.model_copy(update=rate_update)}
    )


@dataclass(frozen=True)
class Pace:
    """How much a step counts for, and how far the schedule is ahead of the steps taken.

    With `scale_steps_by_worker` or `numb_epoch`, a run on more workers has fewer steps, and each counts for more. A run
    that goes on on another number of workers keeps counting its steps (files are named after them), but its schedule
    has to go on at the same share of the whole.

    Attributes:
        workers: how many there are.
        per_step: micro-batches that a step takes, on all workers together.
        offset: how many steps the schedule is further than the run.
    """

    workers: int
    per_step: int
    offset: int = 0

    @classmethod
    def of(cls, config: AnyInput, workers: int, step: int, saved: Mapping[str, int] | None) -> Pace:
        """The pace of a run from `step` on, whose checkpoint says `saved`."""
        per_step = config.training.acc_freq * workers
        if saved is None:
            return cls(workers, per_step)
        then = cls(**saved)
        if config.training.numb_steps is None:
            share = then.per_step / per_step
        elif config.training.scale_steps_by_worker:
            share = then.workers / workers
        else:
            return cls(workers, per_step)
        return cls(workers, per_step, round((step + then.offset) * share) - step)


def report(
    config: AnyInput, schedule: Schedule, pace: Pace, numb_steps: int, micro_batches: int, plan: Plan
) -> list[str]:
    """Lines for the log: learning rate, global batch, samples of a step and of all `micro_batches` of the run."""
    rate, accumulate, workers = config.learning_rate, config.training.acc_freq, pace.workers
    frames = float((plan.probabilities * plan.batch_sizes).sum())
    later = f", its decay later by a power of {schedule.delay:.3g}" if schedule.delay != 1 else ""
    return [
        f"learning rate: base {rate.start_lr:.3g} x {schedule.factor:.4g} ({rate.scale_by_worker}, {workers} workers)"
        f" = {schedule.start_lr:.3g}{later}",
        f"global batch: {frames * pace.per_step:.4g} frames = {frames:.4g} per micro-batch x {accumulate} accumulated"
        f" x {workers} workers",
        f"samples seen: {frames * pace.per_step:.4g} per step, {frames * micro_batches:.6g} in {numb_steps} steps",
    ]


def _divided(value: int | None, workers: int) -> int | None:
    return None if value is None else max(1, round(value / workers))
