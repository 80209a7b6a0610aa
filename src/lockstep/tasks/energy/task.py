"""The native energy task: a potential of this program, trained on energies and their derivatives."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import torch
from torch import Tensor

from lockstep.config import AnyInput, Input
from lockstep.data import Array, MicroBatch
from lockstep.errors import taken_apart
from lockstep.geometry import PairCache
from lockstep.geometry.cache import cache_budget
from lockstep.parallel.agreement import share_weights
from lockstep.tasks.energy.arrays import energy_arrays
from lockstep.tasks.energy.check import check_frames, check_labels
from lockstep.tasks.energy.loss import EnergyLoss
from lockstep.tasks.energy.prepare import Preparer, Sample
from lockstep.tasks.energy.share import sum_of_shares
from lockstep.tasks.energy.slices import sum_of_slices
from lockstep.tasks.energy.spectral import Spectral, measure_difference
from lockstep.tasks.energy.start import Start, make_start
from lockstep.tasks.metrics import LossTerms, energy_differences
from lockstep.tasks.task import Job, Task

log = logging.getLogger(__name__)

_COMPARED, _SEED = 4, 1
"""Micro-batches on which spline expansion and exact nets are compared in the end, and how they are drawn."""


class EnergyTask(Task):
    """Geometry prepared ahead, networks, the energy loss, and a spline basis as fine as the nets need it."""

    shares_frames: ClassVar[bool] = True

    def __init__(self, job: Job, start: Start, cache: PairCache, validation_cache: PairCache) -> None:
        self.config, self.module = start.config, start.potential
        self.title = f"native {start.config.model.descriptor.type}"
        self._job, self._potential = job, start.potential
        self._loss = EnergyLoss(start.config.loss, job.start_lr)
        self.columns = self._loss.columns
        begin = job.position(job.checkpoint.step) if job.checkpoint else 0
        with taken_apart(job.checkpoint.path if job.checkpoint else None):
            self._spectral = Spectral(start.potential, start.s_max, job.position, job.saved("spectral"), begin)
        log.info("spectral embedding: %s", self._spectral.describe())
        if start.config.training.mixed_precision is not None:
            start.potential.network.fitting.product_dtype = torch.float32
            log.info("mixed precision: the fitting nets' matrix products in float32, weights and all else in float64")
            if start.config.training.mixed_precision.compute_prec != "float32":
                log.info("training.mixed_precision.compute_prec: float32 is the least that is computed with here")
        self._cache, self._validation_cache = cache, validation_cache
        self._prepare = Preparer(start.potential, cache, self._spectral.bases, job.frame)
        self._prepare_validation = Preparer(
            start.potential, self._validation_cache, lambda _: self._spectral.current, job.frame
        )
        check_labels(job.training.dataset, self._loss)

    @classmethod
    def arrays(cls, config: AnyInput) -> tuple[Array, ...]:
        assert isinstance(config, Input)
        return energy_arrays(config.model.fitting_net)

    @classmethod
    def build(cls, job: Job) -> EnergyTask:
        cache, validation_cache = PairCache(_cache_bytes(job)), PairCache(_cache_bytes(job) // 4)
        start = make_start(job, cache)
        if job.validation and job.survey_all:
            check_frames(job.validation, job.group, start.potential.cutoffs, validation_cache)
        start.potential.to(job.device)
        # Shared before the splines are chosen: that depends on the weights, and must come out alike everywhere.
        share_weights(start.potential.state_dict().values(), job.group)
        return cls(job, start, cache, validation_cache)

    def prepare(self, batch: MicroBatch) -> Sample:
        return self._prepare(batch)

    def prepare_validation(self, batch: MicroBatch) -> Sample:
        return self._prepare_validation(batch)

    def loss(self, sample: Sample, lr: float) -> LossTerms:
        share = sum_of_slices(self._potential, sample.environments, sample.parameters)
        prediction = sum_of_shares(share, self._job.frame)
        return self._loss(prediction, sample.labels, lr, sample.real)

    @torch.no_grad()
    def differences(self, sample: Sample) -> dict[str, Tensor]:
        share = sum_of_slices(self._potential, sample.environments, sample.parameters)
        prediction = sum_of_shares(share, self._job.frame)
        predicted = {"energy": prediction.energy, "force": prediction.force, "virial": prediction.virial}
        real = torch.ones_like(prediction.atom_energy, dtype=torch.bool) if sample.real is None else sample.real
        return energy_differences(predicted, sample.labels, real)

    def after_update(self, step: int) -> None:
        self._spectral.check(step)

    def state(self) -> dict[str, Any]:
        return {"spectral": self._spectral.state_dict()}

    def finish(self) -> None:
        """Say how far the spline expansion is from the exact nets."""
        bases = self._spectral.current
        if not any(bases) or self._job.group.rank != 0:
            return
        plan, cache = self._job.training, self._cache
        if self._job.validation:
            plan, cache = self._job.validation, self._validation_cache
        stream = plan.stream(_SEED)
        batches = (plan.dataset.read(*stream.at(number)) for number in range(_COMPARED))
        difference = measure_difference(self._potential, bases, batches, cache)
        log.info("spectral embedding: differs from the exact nets by at most %s", difference)


def _cache_bytes(job: Job) -> int:
    return cache_budget(job.config.training.cache_memory, job.group.context.local_size)
