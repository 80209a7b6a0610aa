"""What the user wants to see of a run beyond its log, and the observers that show it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.config.training import TrainingConfig
from lockstep.device import device_of
from lockstep.errors import UserError
from lockstep.observe.profile import Profile
from lockstep.observe.timeline import NullTracer, Timeline, Tracer
from lockstep.parallel.group import Group
from lockstep.phases import DevicePhases, SettledPhases

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "COBALT_JOBID")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Wishes:
    """What to observe.

    Attributes:
        profile: write a communication profile on every rank.
        timeline: the file of the timeline; None for none.
        job: how this job is called in the names of files.
    """

    profile: bool = False
    timeline: str | None = None
    job: str = ""

    @property
    def any(self) -> bool:
        return self.profile or self.timeline is not None


def find_wishes(
    profile: bool, timeline: str | None, config: TrainingConfig, environ: Mapping[str, str] = os.environ
) -> Wishes:
    """From the command line, the environment and the input file, in this order."""
    from_input = config.profiling_file if config.profiling else None
    return Wishes(
        profile or _flag(environ, "DP_PROFILE"),
        timeline or environ.get("HOROVOD_TIMELINE") or from_input,
        next((environ[name] for name in _JOB_VARIABLES if environ.get(name)), str(os.getpid())),
    )


@contextmanager
def observed(group: Group, wishes: Wishes, device: str) -> Iterator[Tracer | NullTracer]:
    """Observe a run on all ranks as rank 0 wishes; yields what notes the work of other threads."""
    wishes = group.all_gather_object(wishes)[0]
    place = device_of(device)
    if place.behind:
        group.progress.phases = SettledPhases(place.wait) if wishes.any else DevicePhases(place.mark)
    with ExitStack() as stack:
        if wishes.profile:
            stack.enter_context(Profile(group, wishes.job, Path()))
        yield stack.enter_context(Timeline(group, wishes.timeline)) if wishes.timeline else NullTracer()


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip().lower()
    if text not in _YES + _NO:
        raise UserError("expected 1 or 0", where=f"environment variable {name}", value=environ[name])
    return text in _YES
