"""Keeps the spline expansion of the embedding nets as fine as the nets need it.

The expansion is an acceleration, not another model: the weights stay those of the nets, and exported models are
exact. Nets sharpen as they learn, so its error is measured every few steps, and the basis refined before it matters.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.data import MicroBatch
from lockstep.geometry import Bases, PairCache, RowScale, SplineBasis
from lockstep.geometry.basis import S0
from lockstep.geometry.constants import basis_constants
from lockstep.geometry.environment import cut
from lockstep.model import Potential
from lockstep.model.statistics import UNSEEN_ROW_STD
from lockstep.tasks.energy.survey import cached_pairs

log = logging.getLogger(__name__)

LADDER = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of intervals to choose from. With the last a step of water takes twice as long as with the first, and a third
of what it takes with the exact nets."""
TOLERANCE = 1e-5
"""Largest error of a net's value, and of its slope by the stretched variable, that is let stand."""
CHECK_EVERY = 50
"""Steps between two looks at the error."""
LOOKAHEAD = 64
"""Steps after which a new basis is used: more micro-batches of each rank than its loader has prepared ahead."""


MOST_COMPARED = 2048
"""Atoms of a micro-batch that are evaluated both ways in the end."""


class Spectral:
    """Which bases each micro-batch of the stream is expanded in, one for each of the model's cutoffs.

    A change takes effect at a fixed place in the stream, never "from now on": loader threads run ahead by an
    accidental number of micro-batches, and two runs must still do the same.

    Args:
        s_max: for each cutoff, the largest value of the radial function that the data have, with a margin.
        position: from a step to how far the stream is after it, the same on all ranks.
        state: what `state_dict` gave, to go on from a checkpoint.
        begin: the micro-batch that the run begins with, or goes on with.

    Attributes:
        current: the bases of the stream's present position, for data outside of the stream.
    """

    def __init__(
        self,
        potential: Potential,
        s_max: Sequence[float],
        position: Callable[[int], int],
        state: Mapping[str, Any] | None = None,
        begin: int = 0,
    ) -> None:
        self._position = position
        states = _states(state, len(potential.cutoffs))
        parts = zip(potential.config.descriptor.parts(), s_max, states, strict=True)
        self._parts = [
            _Ladder(potential, number, part.spectral, largest, saved, begin)
            for number, (part, largest, saved) in enumerate(parts)
        ]
        self.current = self.bases(begin)

    def bases(self, number: int) -> Bases:
        """The bases of micro-batch `number`; None for the exact nets."""
        return tuple(part.basis(number) for part in self._parts)

    def check(self, step: int) -> None:
        """Refine the bases if the nets after `step` need it."""
        self.current = self.bases(self._position(step))
        for part in self._parts:
            # Steps, not micro-batches: the place must not depend on how the ranks share out a step.
            part.check(step, self._position(step + LOOKAHEAD))

    def state_dict(self) -> dict[str, Any]:
        return {"version": 2, "parts": [part.state_dict() for part in self._parts]}

    def describe(self) -> str:
        """The newest choices in words."""
        return " and ".join(part.describe() for part in self._parts)


def _states(state: Mapping[str, Any] | None, number: int) -> list[Mapping[str, Any] | None]:
    """What was saved of each cutoff; the first version knew a single one."""
    if state is None:
        return [None] * number
    return list(state["parts"]) if "parts" in state else [state]


class _Ladder:
    """The bases of one cutoff, from coarse to fine.

    Args:
        setting: `auto`, `off`, a number of intervals, or a tolerance below one, as in the input file.
        begin: from which micro-batch on another setting than that of `state` takes effect.
    """

    def __init__(
        self,
        potential: Potential,
        cutoff: int,
        setting: str | float,
        s_max: float,
        state: Mapping[str, Any] | None,
        begin: int,
    ) -> None:
        self._potential, self._cutoff = potential, cutoff
        self._fixed = setting == "off" or (not isinstance(setting, str) and setting >= 1)
        self._tolerance = float(setting) if not isinstance(setting, str) and setting < 1 else TOLERANCE
        self._s_max = float(state["s_max"]) if state else s_max
        self._starts: list[int] = list(state["starts"]) if state else [0]
        self._bases: dict[int, SplineBasis] = {}
        self._setting = setting
        self._intervals: list[int] = list(state["intervals"]) if state else [self._first(setting)]
        if state and self._is_new(state):
            self._begin_anew(begin)

    def basis(self, number: int) -> SplineBasis | None:
        """The basis of micro-batch `number`; None for the exact nets."""
        return self._basis(self._intervals[bisect_right(self._starts, number) - 1])

    def check(self, step: int, start: int) -> None:
        """Refine the basis from micro-batch `start` on if the nets after `step` need it."""
        newest = self._intervals[-1]
        if self._fixed or not newest or step % CHECK_EVERY:
            return
        error = self._error(newest)
        # Refined early: until the change takes effect the nets go on sharpening.
        if error <= self._tolerance / 4:
            return
        chosen = self._choose(start=newest)
        # Never before the last change, which a run on more ranks may have put further ahead.
        self._starts.append(max(self._starts[-1], start))
        self._intervals.append(chosen)
        log.info("spectral embedding: error %.1e at step %d, now %s", error, step, self.describe())

    def state_dict(self) -> dict[str, Any]:
        return {
            "setting": self._setting,
            "s_max": self._s_max,
            "starts": self._starts,
            "intervals": self._intervals,
        }

    def describe(self) -> str:
        if self._intervals[-1]:
            return f"{self._intervals[-1]} intervals"
        if self._fixed:
            return "the exact nets"
        return f"the exact nets, which {LADDER[-1]} intervals do not follow to {self._tolerance:g}"

    def _is_new(self, state: Mapping[str, Any]) -> bool:
        """Whether the input asks for something else than what the checkpoint was trained with."""
        if "setting" in state:
            return bool(state["setting"] != self._setting)
        # Earlier checkpoints do not tell; a fixed number can be compared.
        return self._fixed and self._intervals[-1] != self._first(self._setting)

    def _begin_anew(self, begin: int) -> None:
        """Choose as a new run would, from the micro-batch `begin` on; changes still to come are forgotten."""
        kept = bisect_left(self._starts, begin)
        self._starts = [*self._starts[:kept], begin]
        self._intervals = [*self._intervals[:kept], self._first(self._setting)]

    def _first(self, setting: str | float) -> int:
        if setting == "off":
            return 0
        if not isinstance(setting, str) and setting >= 1:
            return int(setting)
        return self._choose(start=0)

    def _choose(self, start: int) -> int:
        """The smallest basis, not coarser than `start`, whose error is small enough; 0 when none is."""
        for intervals in LADDER:
            if intervals > start and self._error(intervals) <= self._tolerance / 8:
                return intervals
        return 0

    @cached_property
    def _types(self) -> list[int]:
        return seen_types(self._potential.scales[self._cutoff])

    def _error(self, intervals: int) -> float:
        return expansion_error(self._potential, self._required(intervals), self._cutoff, self._types)

    def _basis(self, intervals: int) -> SplineBasis | None:
        return self._required(intervals) if intervals else None

    def _required(self, intervals: int) -> SplineBasis:
        if intervals not in self._bases:
            self._bases[intervals] = SplineBasis(intervals, self._s_max)
        return self._bases[intervals]


def seen_types(scale: RowScale) -> list[int]:
    """The types that the data have: the others still have the spread that is assumed for them. A model of all elements
    has thousands of pairs of types, of which a training sees a few."""
    assumed = (scale.std_radial == UNSEEN_ROW_STD) & (scale.std_angular == UNSEEN_ROW_STD)
    seen: list[int] = torch.nonzero(~assumed).flatten().tolist()
    return seen or list(range(len(scale.mean)))


class _Between(NamedTuple):
    """What the error of a basis is measured with: its splines and their slopes half-way between the nodes [points,
    size], and there the radial function and its slope by the position."""

    value: Tensor
    slope: Tensor
    radial: Tensor
    radial_slope: Tensor


@lru_cache(maxsize=64)
def _between(basis: SplineBasis, device: torch.device) -> _Between:
    points = basis.between
    radial = basis.radial(points)
    arrays = (
        basis.values(points),
        basis.values(points, slope=True),
        radial,
        np.sqrt(np.square(radial) + S0**2) / basis.per_unit,
    )
    return _Between(*(torch.as_tensor(array).to(device) for array in arrays))


@torch.no_grad()
def expansion_error(
    potential: Potential, basis: SplineBasis, cutoff: int = 0, types: Sequence[int] | None = None
) -> float:
    """The largest error of any embedding net's value or slope, half-way between the nodes; the device is asked once.

    `types` are those that the data have.
    """
    scale, descriptor = potential.scales[cutoff], potential.network.descriptor
    (fit, nodes), at = basis_constants(basis, potential.device), _between(basis, potential.device)
    types = seen_types(scale) if types is None else types
    errors = []
    for t in types:
        mean, std = scale.mean[t], scale.std_radial[t]
        for embedding in descriptor.embeddings(cutoff, t, types):
            coefficients = fit @ embedding.push_forward(((nodes - mean) / std).unsqueeze(1))[0]
            value, slope = embedding.push_forward(((at.radial - mean) / std).unsqueeze(1))
            slope = slope * (at.radial_slope / std)[:, None]
            errors.append((at.value @ coefficients - value).abs().max())
            errors.append((at.slope @ coefficients - slope).abs().max() * basis.per_unit)
    worst = float(torch.stack(errors).max())
    return worst if np.isfinite(worst) else float("inf")


@dataclass(frozen=True)
class Difference:
    """How far expanded nets are from exact ones: the largest over all components in eV/A, and in eV/atom."""

    frames: int
    atoms: int
    force: float
    energy: float

    def __str__(self) -> str:
        where = f"{self.atoms} atoms of {self.frames} frames"
        return f"{self.force:.1e} eV/A in forces, {self.energy:.1e} eV/atom in energies ({where})"


@torch.no_grad()
def measure_difference(
    potential: Potential, bases: Bases, batches: Iterable[MicroBatch], cache: PairCache
) -> Difference:
    """Evaluate some atoms of some frames both ways; their pairs are taken from `cache`."""
    builder = potential.environment_builder()
    frames, atoms, force, energy = 0, 0, 0.0, 0.0
    for batch in batches:
        own = next(cut(batch.types >= 0, MOST_COMPARED))
        pairs = [
            [cached_pairs(cache, batch, frame, cutoff).of(mine) for frame, mine in enumerate(own)]
            for cutoff in builder.cutoffs
        ]
        parameters = potential.parameters_in(batch.labels)
        expanded, exact = (
            potential.predict(builder.slices(pairs, batch.types, each, own), parameters) for each in (bases, None)
        )
        per_frame = torch.as_tensor(own.sum(axis=1), device=exact.energy.device).clamp(min=1)
        frames += len(batch.frames)
        atoms += int(own.sum())
        force = max(force, float((expanded.force - exact.force).abs().max()))
        energy = max(energy, float(((expanded.energy - exact.energy) / per_frame).abs().max()))
    return Difference(frames, atoms, force, energy)
