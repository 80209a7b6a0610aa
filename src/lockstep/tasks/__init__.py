"""What a run trains: each kind of task behind one interface."""

from __future__ import annotations

from lockstep.config import AnyInput, ForeignInput, Input
from lockstep.tasks.energy.task import EnergyTask
from lockstep.tasks.metrics import Column, LossTerms, Metrics
from lockstep.tasks.task import Job, Task


def choose_task(config: AnyInput) -> type[Task]:
    """The kind of task that an input file describes."""
    if isinstance(config, ForeignInput):
        # Brings DeePMD-kit's files and classes with it, which native models start faster without.
        from lockstep.tasks.deepmd.task import DeepmdTask

        return DeepmdTask
    assert isinstance(config, Input), "a model that is not this program's own needs a task that understands it"
    return EnergyTask


__all__ = ["Column", "Job", "LossTerms", "Metrics", "Task", "choose_task"]
