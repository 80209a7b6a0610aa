"""The course of a run: from which micro-batch to which, at which learning rate, in how many steps."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.data import JointPlan, Plan, Stream, steps_for_epochs
from lockstep.errors import taken_apart
from lockstep.optim.schedule import Schedule, make_schedule
from lockstep.parallel.group import Group
from lockstep.training.pace import Pace, decay_delay, rate_factor, report, warn_about_rate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Course:
    """What was settled about a run before its first step; the same on all ranks.

    Attributes:
        stream: the micro-batches, standing at the first one to come.
        pace: how much a step counts for.
        schedule: the learning rate of each step.
        first_step, numb_steps: steps done before, and in all.
    """

    stream: Stream
    pace: Pace
    schedule: Schedule
    first_step: int
    numb_steps: int

    def position(self, step: int) -> int:
        """How far the stream of micro-batches is after `step`."""
        return self.stream.position + (step - self.first_step) * self.pace.per_step

    def state(self, step: int) -> tuple[dict[str, Any], dict[str, int]]:
        """The stream's and the pace's part of a checkpoint after `step`."""
        return {**self.stream.state_dict(), "position": self.position(step)}, asdict(self.pace)


def plot_course(config: AnyInput, plan: Plan, checkpoint: Checkpoint | None, group: Group) -> Course:
    """The course over the training data, from the start or from where a checkpoint stopped; `group` shares it."""
    saved = {} if checkpoint is None else checkpoint.info
    first_step = 0 if checkpoint is None else checkpoint.step
    path = None if checkpoint is None else checkpoint.path
    with taken_apart(path):
        pace = Pace.of(config, group.size, first_step, saved.get("pace"))
        stream = _find_stream(config, plan, saved.get("stream"), group)
    scheduled = _scheduled_steps(config, plan, pace)
    factor, delay = rate_factor(config, group.size), decay_delay(config, group.size)
    schedule = make_schedule(config.learning_rate, scheduled, factor, pace.offset, delay)
    course = Course(stream, pace, schedule, first_step, scheduled - pace.offset)
    for line in report(config, schedule, pace, course.numb_steps, course.position(course.numb_steps), plan):
        log.info(line)
    warn_about_rate(config, schedule.start_lr)
    return course


def _scheduled_steps(config: AnyInput, plan: Plan, pace: Pace) -> int:
    training = config.training
    if training.numb_steps is not None:
        return training.numb_steps
    if training.numb_epoch is None:
        # Passes over the data of each of several models.
        assert isinstance(plan, JointPlan)
        return steps_for_epochs(1.0, math.ceil(plan.total), pace.per_step)
    return steps_for_epochs(training.numb_epoch, plan.per_epoch, pace.per_step)


def _find_stream(config: AnyInput, plan: Plan, saved: Mapping[str, Any] | None, group: Group) -> Stream:
    seed = config.training.seed
    if saved is None:
        drawn = group.all_gather_object(secrets.randbits(31) if seed is None else seed)[0]
        return plan.stream(int(drawn))
    stream = plan.stream(int(saved["seed"]))
    if seed is not None and seed != stream.seed:
        log.warning(
            "training.seed = %d has no effect: the run goes on with the checkpoint's order of frames, seed %d",
            seed,
            stream.seed,
        )
    for difference in stream.load_state_dict(dict(saved), strict=False):
        log.warning("The stream of training data is not that of the checkpoint: %s", difference)
    return stream
