"""From a micro-batch of the stream to what a step needs: environment, labels, parameters. Runs in loader threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lockstep.data import MicroBatch
from lockstep.device import upload
from lockstep.geometry import Bases, Environment, PairCache, Pairs
from lockstep.model import Potential
from lockstep.model.potential import Parameters
from lockstep.parallel.group import Group
from lockstep.tasks.energy.share import own_atoms
from lockstep.tasks.energy.survey import cached_pairs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sample:
    """A micro-batch made ready for the potential and the loss.

    Attributes:
        environments: slices of the micro-batch, each with centres of its own; one, unless frames are very large.
        real: [B, n] false for padding atoms; None where there are none.
    """

    environments: tuple[Environment, ...]
    labels: dict[str, Tensor]
    parameters: Parameters
    real: Tensor | None


class Preparer:
    """Makes samples, on the potential's device. Weights play no part, so it can run ahead of the training.

    Args:
        bases: from a micro-batch's number to the bases its moments are taken over, or None for rows.
        group: the ranks that share a micro-batch, each with atoms of its own; None where this one has all.
    """

    def __init__(
        self,
        potential: Potential,
        cache: PairCache,
        bases: Callable[[int], Bases | None] = lambda number: None,
        group: Group | None = None,
    ) -> None:
        self._group = group
        self._builder = potential.environment_builder()
        self._cache = cache
        self._bases = bases
        self._device = potential.device
        self._told = False
        self._parameters_in = potential.parameters_in
        self._nets_by_type = not potential.network.fitting.mixed_types

    def __call__(self, batch: MicroBatch) -> Sample:
        own = own_atoms(batch, self._group, self._cache, self._nets_by_type) if self._group else None
        pairs = [
            [
                cached_pairs(self._cache, batch, frame, cutoff, None if own is None else own[frame])
                for frame in range(len(batch.frames))
            ]
            for cutoff in self._builder.cutoffs
        ]
        self._tell_dropped(batch, pairs)
        labels = {name: upload(value, self._device) for name, value in batch.labels.items()}
        padded = (batch.types < 0).any()
        return Sample(
            environments=tuple(self._builder.slices(pairs, batch.types, self._bases(batch.number), own)),
            labels=labels,
            parameters=self._parameters_in(labels),
            real=upload(batch.types >= 0, self._device) if padded else None,
        )

    def _tell_dropped(self, batch: MicroBatch, pairs: list[list[Pairs]]) -> None:
        """Say once that atoms have more neighbours than slots."""
        if self._told:
            return
        for cutoff, found in zip(self._builder.cutoffs, pairs, strict=True):
            if any(each.dropped for each in found):
                self._told = True
                log.warning(
                    "model.descriptor.sel = %s is too small for frame %d of the data: only the nearest neighbours are"
                    " kept. Raise sel, or set it to 'auto'.",
                    list(cutoff.sel) if cutoff.shared is None else cutoff.shared,
                    int(batch.frames[0]),
                )
