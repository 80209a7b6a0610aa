"""From the budget of a run to the numbers of the scaling table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from lockstep.errors import UserError
from lockstep.observe.budget import read_budget
from lockstep.phases import COMMUNICATION, WAIT
from lockstep.scaling.cost import Point
from lockstep.scaling.trial import Dealt


@dataclass(frozen=True)
class Measurement:
    """One run.

    Attributes:
        accumulate: micro-batches a worker and step.
        per_frame: workers that share each of them.
        oversubscribed: the machine has fewer cores (or GPUs) than the workers wanted.
        seconds_per_step: the median of the counted intervals, which a moment of other load does not move.
        spread: how far apart the middle half of the intervals lies, as a part of the median.
        budget: shares of a step's time.
    """

    workers: int
    accumulate: int
    per_frame: int
    oversubscribed: bool
    steps: int
    seconds_per_step: float
    samples_per_step: float
    spread: float
    budget: dict[str, float]

    @property
    def samples_per_s(self) -> float:
        """Of all workers together."""
        return self.samples_per_step / self.seconds_per_step

    @property
    def point(self) -> Point:
        """For the cost model."""
        shares = (self.budget.get(COMMUNICATION), self.budget.get(WAIT))
        return Point(self.workers, self.accumulate, self.seconds_per_step, *shares, per_frame=self.per_frame)


def measure(folder: Path, workers: int, dealt: Dealt, warmup: int, oversubscribed: bool) -> Measurement:
    """Read a finished run; the first `warmup` steps do not count."""
    path = folder / "budget.jsonl"
    lines = [line for line in read_budget(path) if line["step"] > warmup] if path.is_file() else []
    if not lines:
        raise UserError("the run has left no measurement of its steps", where=str(path))
    seconds = [line["wall"] / line["steps"] for line in lines]
    steps = sum(line["steps"] for line in lines)
    return Measurement(
        workers=workers,
        accumulate=dealt.accumulate,
        per_frame=dealt.per_frame,
        oversubscribed=oversubscribed,
        steps=steps,
        seconds_per_step=median(seconds),
        samples_per_step=sum(line["samples"] for line in lines) / steps,
        spread=_spread(seconds),
        budget=mean_budget(lines),
    )


def mean_budget(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The shares of several intervals, each weighted by its length."""
    wall = sum(line["wall"] for line in lines)
    names = dict.fromkeys(name for line in lines for name in line.get("budget", {}))
    return {name: sum(line["wall"] * line["budget"].get(name, 0.0) for line in lines) / wall for name in names}


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
