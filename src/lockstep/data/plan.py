"""How a data set is trained on: batch sizes and probabilities settled, and one object to hand around."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.data.batching import batch_counts, batch_sizes, is_mixed, kept_systems
from lockstep.data.dataset import DataSet
from lockstep.data.merged import merge
from lockstep.data.probability import micro_batches_per_epoch, system_probabilities
from lockstep.data.stream import Stream
from lockstep.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A data set with, for each system, frames in a micro-batch, micro-batches in a pass, and probability."""

    dataset: DataSet
    batch_sizes: np.ndarray
    counts: np.ndarray
    probabilities: np.ndarray

    def stream(self, seed: int) -> Stream:
        return Stream(self.dataset.n_frames, self.batch_sizes, self.probabilities, seed)

    @property
    def most_atoms(self) -> int:
        """Atoms of the largest micro-batch."""
        return int((self.batch_sizes * self.dataset.natoms).max())

    @property
    def per_epoch(self) -> int:
        """Micro-batches in an epoch; see `probability.micro_batches_per_epoch`."""
        return micro_batches_per_epoch(self.counts, self.probabilities)


def make_plan(
    dataset: DataSet,
    batch_size: int | str | Sequence[int],
    sys_probs: Sequence[float] | None = None,
    *,
    auto_prob: str,
    where: str = "training.training_data",
) -> Plan:
    """Settle `batch_size`, `sys_probs` and `auto_prob` of a section of the input file."""
    if is_mixed(batch_size, f"{where}.batch_size"):
        if sys_probs is not None or auto_prob != "prob_sys_size":
            raise InputError(
                "batches of several systems take every frame once a pass, whatever its system",
                where=f"{where}.{'auto_prob' if sys_probs is None else 'sys_probs'}",
                remedy="leave it out, or use another batch_size",
            )
        dataset = merge(dataset)
    kept = kept_systems(batch_size, dataset.natoms, f"{where}.batch_size")
    if len(kept) < len(dataset):
        log.warning("batch_size = %r leaves out %d of %d systems", batch_size, len(dataset) - len(kept), len(dataset))
        dataset = dataset.take(kept)
    sizes = batch_sizes(batch_size, dataset.natoms, dataset.n_frames, f"{where}.batch_size")
    counts = batch_counts(dataset.n_frames, sizes)
    return Plan(dataset, sizes, counts, system_probabilities(counts, sys_probs, auto_prob, where))
