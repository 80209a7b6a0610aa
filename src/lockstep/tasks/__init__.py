"""What a run trains: each kind of task behind one interface, chosen from one table."""

from __future__ import annotations

from lockstep.config import AnyInput
from lockstep.tasks.energy.task import EnergyKind
from lockstep.tasks.metrics import Column, LossTerms, Metrics
from lockstep.tasks.task import Job, Kind, Task

KINDS: tuple[Kind, ...] = (EnergyKind(),)
"""The first that serves an input trains it."""


def choose_kind(config: AnyInput) -> Kind:
    """The kind of task that an input file describes."""
    return next(kind for kind in KINDS if kind.serves(config))


__all__ = ["KINDS", "Column", "Job", "Kind", "LossTerms", "Metrics", "Task", "choose_kind"]
