"""A task whose model and loss are DeePMD-kit's; everything around them is this program's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.config import AnyInput
from lockstep.config.foreign import ForeignInput, ForeignOptimizer, KalmanConfig
from lockstep.data import Array, DataSet, JointDataSet, MicroBatch
from lockstep.geometry.cache import cache_budget
from lockstep.interop.kit.files import ALIASES, ONLY
from lockstep.optim.kalman import KalmanFilter
from lockstep.optim.optimizer import Optimizer
from lockstep.tasks.deepmd.batch import Inputs, Labels, Translator
from lockstep.tasks.deepmd.branches import Models
from lockstep.tasks.deepmd.neighbours import KnownLists
from lockstep.tasks.deepmd.optimizers import DeepmdOptimizer, make_filter
from lockstep.tasks.deepmd.signals import SIGNALS, Signal, drawn_atoms, measured, weights_at
from lockstep.tasks.deepmd.start import Start, make_start, wanted_arrays
from lockstep.tasks.metrics import Column, LossTerms, Metrics, energy_differences
from lockstep.tasks.task import Job, Task

log = logging.getLogger(__name__)

TOTAL = "rmse"


@dataclass(frozen=True)
class Sample:
    """A micro-batch as a branch takes it; `keys` name its frames among all that are known."""

    branch: str
    inputs: Inputs
    labels: Labels
    keys: list[tuple[str, int]]


class DeepmdTask(Task):
    """Models of DeePMD-kit's, one or several that share parts."""

    config: ForeignInput
    module: Models
    signals = SIGNALS

    def __init__(self, job: Job, start: Start) -> None:
        self.config, self.title, self.module = start.config, start.title, start.module
        self._job, self._branches = job, start.branches
        self._translators = {name: Translator(branch, job.device) for name, branch in start.branches.items()}
        training = start.config.training
        self._lists = KnownLists(cache_budget(training.cache_memory, job.group.context.local_size))
        self.columns = (Column(TOTAL), *self._find_columns())
        self._places = {column.name: place for place, column in enumerate(self.columns)}

    @classmethod
    def arrays(cls, config: AnyInput) -> tuple[Array, ...]:
        return wanted_arrays(config)

    @classmethod
    def build(cls, job: Job) -> DeepmdTask:
        return cls(job, make_start(job))

    def prepare(self, batch: MicroBatch) -> Sample:
        return self._sample(batch, self._job.training.dataset, "training")

    def prepare_validation(self, batch: MicroBatch) -> Sample:
        assert self._job.validation is not None
        return self._sample(batch, self._job.validation.dataset, "validation")

    def _sample(self, batch: MicroBatch, dataset: DataSet, purpose: str) -> Sample:
        name = dataset.part_of(batch.system) if isinstance(dataset, JointDataSet) else ONLY
        translator = self._translators[name]
        keys = [(purpose, int(frame)) for frame in batch.frames]
        return Sample(name, translator.inputs(batch), translator.labels(batch), keys)

    def loss(self, sample: Sample, lr: float) -> LossTerms:
        total, errors = self._called(sample, lr)
        return LossTerms(total, self._metrics(sample, total.detach(), errors))

    def evaluate(self, sample: Sample, lr: float) -> Metrics:
        """Forces are derivatives that torch has to take: gradients stay on, the weights' are never asked for."""
        self.module.eval()
        try:
            return self.loss(sample, lr).metrics
        finally:
            self.module.train()

    def differences(self, sample: Sample) -> dict[str, Tensor]:
        self.module.eval()
        try:
            predicted, _, _ = self._answer(sample, self._job.start_lr)
        finally:
            self.module.train()
        names = ("energy", "force", "virial", "force_mag")
        labels = {name: sample.labels[name] for name in names if sample.labels.get(f"find_{name}")}
        types = sample.inputs["atype"]
        assert types is not None
        return energy_differences(predicted, labels, types >= 0)

    def signal(self, sample: Sample, number: int, step: int, done: float, lr: float) -> Signal:
        """A measurement of a Kalman filter: the energies, or the forces on some atoms, which the frames determine."""
        section = self.config.optimizer
        assert isinstance(section, KalmanConfig)
        predicted, total, errors = self._answer(sample, lr)
        types = sample.inputs["atype"]
        assert types is not None
        seeds = [self.config.training.seed or 0, step, *(frame for _, frame in sample.keys)]
        group = drawn_atoms(types >= 0, number, seeds) if number else None
        weight = weights_at(section, done)[min(number, 1)]
        values = measured(predicted, sample.labels, group, weight)
        return Signal(*values, self._metrics(sample, total.detach(), _displayed(errors)))

    def optimizer(self) -> Optimizer | KalmanFilter | None:
        """DeePMD-kit's, where the input names one."""
        section = self.config.optimizer
        if isinstance(section, KalmanConfig):
            return make_filter(self.module, section, self._job.group.context.local_size)
        return DeepmdOptimizer(self.module, section) if isinstance(section, ForeignOptimizer) else None

    def state(self) -> dict[str, Any]:
        return {ALIASES: self.module.aliases()}

    def _called(self, sample: Sample, lr: float) -> tuple[Tensor, dict[str, Any]]:
        _, total, errors = self._answer(sample, lr)
        return total, _displayed(errors)

    def _answer(self, sample: Sample, lr: float) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
        """What DeePMD-kit's loss gives back: predictions, the loss, and errors."""
        branch = self._branches[sample.branch]
        atoms = sample.inputs["atype"].shape[-1]  # type: ignore[union-attr]
        with self._lists.of(sample.keys):
            return branch.loss(dict(sample.inputs), branch.model, dict(sample.labels), natoms=atoms, learning_rate=lr)

    def _metrics(self, sample: Sample, total: Tensor, errors: Mapping[str, Any]) -> Metrics:
        """Sums over the frames of the micro-batch, for which DeePMD-kit gives means and their roots."""
        frames = float(len(sample.keys))
        sums = torch.zeros(len(self.columns), dtype=torch.float64, device=total.device)
        counts = torch.zeros_like(sums)
        sums[0] = total
        counts[0].fill_(1.0)
        for name, value in errors.items():
            place = self._places[self._column(name, sample.branch).name]
            mean = torch.as_tensor(value, dtype=torch.float64, device=total.device).detach()
            mean = mean.square() if self.columns[place].shown == "rms" else mean
            known = torch.isfinite(mean)
            sums[place], counts[place] = torch.where(known, mean * frames, 0.0), known * frames
        return Metrics(self.columns, torch.cat([sums, counts]))

    def _find_columns(self) -> list[Column]:
        """DeePMD-kit's losses say what they show by showing it: one frame of every branch is tried."""
        dataset, found = self._job.training.dataset, []
        for name in self._branches:
            system = dataset.systems_of(name).start if isinstance(dataset, JointDataSet) else 0
            batch = dataset.read(system, np.zeros(1, dtype=np.int64))
            _, errors = self._called(self.prepare(batch), self._job.start_lr)
            found += [self._column(each, name) for each in errors]
        return found

    def _column(self, name: str, branch: str) -> Column:
        return Column(name, _shown(name), "" if branch == ONLY else branch)


def _displayed(errors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in errors.items() if "l2_" not in name and name != TOTAL}


def _shown(name: str) -> Any:
    return "rms" if "rmse" in name else "mean"
