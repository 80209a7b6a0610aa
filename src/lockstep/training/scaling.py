"""What more workers mean for the learning rate and the number of steps."""

from __future__ import annotations

import math

from lockstep.config import Input
from lockstep.data import Plan


def worker_factor(rule: str, workers: int) -> float:
    """What the learning rate is multiplied by: the workers' number, its square root, or one."""
    return {"linear": float(workers), "sqrt": math.sqrt(workers), "none": 1.0}[rule]


def scale_steps(config: Input, workers: int) -> Input:
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


def report(config: Input, factor: float, workers: int, numb_steps: int, plan: Plan) -> list[str]:
    """Lines for the log: learning rate, global batch, samples."""
    rate, accumulate = config.learning_rate, config.training.acc_freq
    frames = float((plan.probabilities * plan.batch_sizes).sum())
    per_step = frames * workers * accumulate
    return [
        f"learning rate: base {rate.start_lr:.3g} x {factor:.4g} ({rate.scale_by_worker}, {workers} workers)"
        f" = {rate.start_lr * factor:.3g}",
        f"global batch: {per_step:.4g} frames = {frames:.4g} per micro-batch x {accumulate} accumulated"
        f" x {workers} workers",
        f"samples seen: {per_step:.4g} per step, {per_step * numb_steps:.6g} in {numb_steps} steps",
    ]


def _divided(value: int | None, workers: int) -> int | None:
    return None if value is None else max(1, round(value / workers))
