"""Errors of a potential on labelled systems: what `dp test` reports."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.details import DetailFiles
from lockstep.analysis.evaluation import Answer, Evaluator, real_atoms
from lockstep.data import DataSet, MicroBatch
from lockstep.model import Potential
from lockstep.observe.progress import Counting, progress

log = logging.getLogger(__name__)

_TITLES = {
    "e": ("Energy {}", "eV"),
    "ea": ("Energy {}/Natoms", "eV"),
    "f": ("Force  {}", "eV/Å"),
    "fw": ("Force weighted {}", "eV/Å"),
    "v": ("Virial {}", "eV"),
    "va": ("Virial {}/Natoms", "eV"),
    "s": ("Stress {}", "eV/Å³"),
    "ae": ("Atomic ener {}", "eV"),
}
_TITLE_WIDTH = 19


@dataclass
class Errors:
    """Sums of absolute and squared errors by quantity, so that parts add up to the whole exactly.

    Attributes:
        sums: for each quantity: sum of absolute errors, sum of squares, and what they are divided by.
    """

    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def add(self, quantity: str, difference: NDArray, weight: NDArray | None = None) -> None:
        """Count differences between potential and label, each as often as its weight says."""
        share = np.ones_like(difference) if weight is None else np.broadcast_to(weight, difference.shape)
        terms = (np.abs(difference) * share, difference**2 * share, share)
        self._count(quantity, np.array([term.sum() for term in terms]))

    def merge(self, other: Errors) -> None:
        for quantity, sums in other.sums.items():
            self._count(quantity, sums)

    def mae(self, quantity: str) -> float:
        absolute, _, weight = self.sums[quantity]
        return float(absolute / weight) if weight else float("nan")

    def rmse(self, quantity: str) -> float:
        _, square, weight = self.sums[quantity]
        return float(np.sqrt(square / weight)) if weight else float("nan")

    def lines(self) -> Iterator[str]:
        """The report, in the words that readers of DeePMD-kit's log know; only what the labels allow."""
        for quantity, (title, unit) in _TITLES.items():
            if quantity in self.sums:
                yield f"{title.format('MAE'):{_TITLE_WIDTH}s}: {self.mae(quantity):e} {unit}"
                yield f"{title.format('RMSE'):{_TITLE_WIDTH}s}: {self.rmse(quantity):e} {unit}"

    def _count(self, quantity: str, sums: NDArray[np.float64]) -> None:
        self.sums[quantity] = self.sums.get(quantity, np.zeros(3)) + sums


@dataclass(frozen=True)
class Choice:
    """Which frames of each system are tested.

    Attributes:
        most: at most this many of each system; 0 stands for all.
        shuffle: take them at random instead of the first ones.
        seed: of the random choice.
    """

    most: int = 0
    shuffle: bool = False
    seed: int | None = None

    def frames(self, dataset: DataSet) -> list[NDArray[np.int64]]:
        """The chosen frames of every system."""
        random = np.random.default_rng(self.seed)
        return [self._of_system(int(count), random) for count in dataset.n_frames]

    def _of_system(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        order = random.permutation(count) if self.shuffle else np.arange(count)
        return order[: self.most] if self.most else order


def measure_errors(
    potential: Potential, dataset: DataSet, choice: Choice, detail_prefix: str | None = None, atomic: bool = False
) -> Errors:
    """Test a potential on every system, logging the errors of each and of all together, which are returned."""
    total = Errors()
    chosen = choice.frames(dataset)
    evaluator = Evaluator([potential])
    count = sum(map(len, chosen))
    with (
        DetailFiles(detail_prefix) if detail_prefix else nullcontext() as details,
        progress("testing", count, "frames") as bar,
    ):
        for system, frames in enumerate(chosen):
            log.info("# ---------------output of dp test--------------- ")
            log.info("# testing system : %s", dataset.name(system))
            errors = _test_system(evaluator, dataset, system, frames, details, atomic, bar)
            log.info("# number of test data : %d ", len(frames))
            _report(errors)
            total.merge(errors)
    log.info("# ----------weighted average of errors----------- ")
    log.info("# number of systems : %d", len(dataset))
    _report(total)
    return total


def _report(errors: Errors) -> None:
    for line in errors.lines():
        log.info(line)
    log.info("# ----------------------------------------------- ")


def _test_system(
    evaluator: Evaluator,
    dataset: DataSet,
    system: int,
    frames: NDArray[np.int64],
    details: DetailFiles | None,
    atomic: bool,
    bar: Counting,
) -> Errors:
    errors = Errors()
    for batch, (answer,) in evaluator.run(dataset, system, frames):
        _compare(errors, batch, answer, atomic)
        if details is not None:
            details.write(dataset.name(system), batch, answer)
        bar.advance(len(batch.frames))
    return errors


def _compare(errors: Errors, batch: MicroBatch, answer: Answer, atomic: bool) -> None:
    """Add the errors of a batch. Padding atoms are nobody's error, and no part of any number of atoms."""
    real = real_atoms(batch)
    natoms, labels = real.sum(axis=1), batch.labels
    if "energy" in labels:
        difference = answer.energy - labels["energy"]
        errors.add("e", difference)
        errors.add("ea", difference / natoms)
    if "force" in labels:
        difference = (answer.force - labels["force"])[real]
        errors.add("f", difference)
        if "atom_pref" in labels:
            errors.add("fw", difference, labels["atom_pref"][real][:, None])
    if "virial" in labels and batch.cell is not None:
        difference = answer.virial - labels["virial"]
        errors.add("v", difference)
        errors.add("va", difference / natoms[:, None, None])
        errors.add("s", difference / np.abs(np.linalg.det(batch.cell))[:, None, None])
    if atomic:
        errors.add("ae", (answer.atom_energy - labels["atom_ener"])[real])
