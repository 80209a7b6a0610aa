"""What a run trains, as the loop sees it, and what is known about the run when its task is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.data import Array, MicroBatch, Plan
from lockstep.optim.kalman import KalmanFilter
from lockstep.optim.optimizer import Optimizer
from lockstep.parallel.group import Group
from lockstep.tasks.metrics import Column, LossTerms, Metrics


@dataclass(frozen=True)
class Job:
    """All that is known about a run when its task is built; the same on all ranks but for the group's rank.

    Attributes:
        config: the input file.
        training, validation: the data, opened; the latter may be missing.
        group: the ranks that build the task together.
        frame: those among them that share the atoms of this rank's micro-batches.
        device: where the module shall live.
        checkpoint: what the run goes on from; None for a new run.
        weights: a model whose weights a new run begins with.
        finetune: whether these weights are only to begin with, of a model for other data.
        head: which model to take them from, where there are several.
        survey_all: whether every frame may be looked at for statistics, as opposed to a few.
        start_lr: the learning rate that the schedule begins with.
        position: from a step to how far the stream of micro-batches is after it.
    """

    config: AnyInput
    training: Plan
    validation: Plan | None
    group: Group
    frame: Group
    device: str
    checkpoint: Checkpoint | None
    weights: str | None
    survey_all: bool
    start_lr: float
    position: Callable[[int], int]
    finetune: bool = False
    head: str | None = None

    def saved(self, key: str) -> Any:
        """A part of the checkpoint's JSON; None for a new run."""
        return self.checkpoint.info.get(key) if self.checkpoint else None


class Task(ABC):
    """A module with weights, how a micro-batch becomes a sample, and the loss of a sample.

    The loop, validation, checkpoints, the learning curve and the report know a task by this class alone. A kind of
    task is a class of its own: the class answers from the input alone what it wants from the data, and builds itself.

    Attributes:
        shares_frames: whether several ranks can share the atoms of a frame.
        title: what trains, for the log.
        config: the input, with everything settled that the data had to decide.
        module: all weights and constants. Its `state_dict` is what ranks share and checkpoints hold as `model.*`.
        columns: the errors that `loss` and `evaluate` count; the first is the loss itself.
    """

    shares_frames: ClassVar[bool] = False
    title: str
    config: AnyInput
    module: nn.Module
    columns: tuple[Column, ...]

    @classmethod
    @abstractmethod
    def arrays(cls, config: AnyInput) -> tuple[Array, ...]:
        """What the task wants from the files of every system, or takes where it is there."""

    @classmethod
    @abstractmethod
    def build(cls, job: Job) -> Task:
        """The task, with its weights. All ranks call it together; they are given rank 0's weights afterwards,
        and a run that goes on from a checkpoint those that it holds.
        """

    @abstractmethod
    def prepare(self, batch: MicroBatch) -> Any:
        """A sample of the training stream, made ready on the module's device. Runs in loader threads: no weights."""

    @abstractmethod
    def loss(self, sample: Any, lr: float) -> LossTerms:
        """The loss of a sample at learning rate `lr`, to be differentiated, and its errors."""

    def prepare_validation(self, batch: MicroBatch) -> Any:
        """A sample of the validation data."""
        return self.prepare(batch)

    def evaluate(self, sample: Any, lr: float) -> Metrics:
        """The errors of a sample; whether gradients are needed on the way is the task's own affair."""
        with torch.no_grad():
            return self.loss(sample, lr).metrics

    def differences(self, sample: Any) -> dict[str, Tensor]:
        """What is predicted less what is labelled, by the labels' names, for validation on all data: energies and
        virials per atom, forces without padding atoms. A task without such labels has none.
        """
        return {}

    def optimizer(self) -> Optimizer | KalmanFilter | None:
        """An optimizer that this task brings along; None for the one that the input file's section makes."""
        return None

    def after_update(self, step: int) -> None:  # noqa: B027 - most tasks have nothing to do
        """The weights have been updated `step` times."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the weights, as JSON: keys of this task's own."""
        return {}

    def finish(self) -> None:  # noqa: B027 - nor anything to say
        """Training is over: say what is left to say."""
