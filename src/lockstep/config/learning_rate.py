"""The `learning_rate` section: one class per schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import model_validator

from lockstep.config.section import (
    Count,
    Finding,
    Flag,
    Fraction,
    FractionBelowOne,
    NaturalNumber,
    NonNegative,
    Positive,
    PositiveFraction,
    Section,
)

_DEFAULT_STOP_LR = 5e-8


class BaseLearningRate(Section):
    """What all learning-rate schedules share: the two ends, the warm-up, the scaling with workers."""

    start_lr: Positive
    """Learning rate at the start of training, after the warm-up."""
    stop_lr: NonNegative | None = None
    """Learning rate wanted at the end of training; 5e-8 if neither this nor `stop_lr_ratio` is given."""
    stop_lr_ratio: Fraction | None = None
    """The final learning rate as a fraction of `start_lr`, instead of `stop_lr`."""
    warmup_steps: NaturalNumber = 0
    """Number of steps over which the learning rate first rises linearly to `start_lr`."""
    warmup_ratio: FractionBelowOne | None = None
    """Warm-up as a fraction of all training steps, instead of `warmup_steps`."""
    warmup_start_factor: NonNegative = 0.0
    """The warm-up begins at this fraction of `start_lr`."""
    scale_by_worker: Literal["linear", "sqrt", "none", "auto"] = "linear"
    """How the rate grows with the number of workers: by their number, its square root, not at all, or `auto`, which
    also counts accumulated micro-batches and knows the optimizer."""

    @property
    def final_lr(self) -> float:
        """The learning rate at the end of training, however it was given."""
        if self.stop_lr_ratio is not None:
            return self.start_lr * self.stop_lr_ratio
        assert self.stop_lr is not None
        return self.stop_lr

    @model_validator(mode="before")
    @classmethod
    def _fill_stop_lr(cls, data: Any) -> Any:
        # A default that holds only while its sibling is absent cannot be a field default.
        if isinstance(data, dict) and data.get("stop_lr") is None and data.get("stop_lr_ratio") is None:
            return {**data, "stop_lr": _DEFAULT_STOP_LR}
        return data

    def findings(self) -> Iterator[Finding]:
        """Yield contradictions between the ends and between the two forms of warm-up."""
        if self.stop_lr is not None and self.stop_lr_ratio is not None:
            yield Finding("stop_lr", "stop_lr and stop_lr_ratio exclude each other", "keep one of them")
        elif self.final_lr > self.start_lr:
            yield Finding("stop_lr", f"larger than start_lr = {self.start_lr:g}", "the rate can only fall; lower it")
        if self.warmup_steps and self.warmup_ratio is not None:
            yield Finding("warmup_steps", "warmup_steps and warmup_ratio exclude each other", "keep one of them")


class ExpLearningRate(BaseLearningRate):
    """Exponential decay, in steps or smooth."""

    type: Literal["exp"] = "exp"
    """The schedule: exponential decay."""
    decay_steps: Count = 5000
    """The rate falls once every this many steps; shortened when training is not longer than that."""
    decay_rate: PositiveFraction | None = None
    """Factor applied every `decay_steps`; by default whatever leads from `start_lr` to `stop_lr`."""
    smooth: Flag = False
    """Decay a little at every step instead of once every `decay_steps`."""


class CosineLearningRate(BaseLearningRate):
    """Half a cosine from `start_lr` to `stop_lr`."""

    type: Literal["cosine"] = "cosine"
    """The schedule: cosine annealing."""


class WsdLearningRate(BaseLearningRate):
    """Warm-up, a stable phase at `start_lr`, then a decay to `stop_lr`."""

    type: Literal["wsd"] = "wsd"
    """The schedule: warm-up, stable, decay."""
    decay_phase_ratio: PositiveFraction = 0.1
    """Length of the decay as a fraction of all training steps."""
    decay_type: Literal["inverse_linear", "cosine", "linear"] = "inverse_linear"
    """Curve of the decay: linear in 1/rate, a half cosine, or linear."""

    def findings(self) -> Iterator[Finding]:
        """Yield the shared contradictions, and an end at zero, where 1/rate has no value."""
        yield from super().findings()
        if self.final_lr <= 0:
            key = "stop_lr" if self.stop_lr_ratio is None else "stop_lr_ratio"
            yield Finding(key, "must be greater than 0 for the wsd schedule")


LearningRateConfig = ExpLearningRate | CosineLearningRate | WsdLearningRate
