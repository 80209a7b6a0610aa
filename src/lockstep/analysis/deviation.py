"""How far several models disagree about the same frames: what `dp model-devi` writes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.analysis.evaluation import Answer, Evaluator, real_atoms
from lockstep.data import DataSet, MicroBatch
from lockstep.errors import UserError
from lockstep.model import Potential
from lockstep.observe.progress import progress

log = logging.getLogger(__name__)

_NAMES = ["step", *(f"{kind}_devi_{item}" for item in "vf" for kind in ("max", "min", "avg")), "devi_e"]
REAL_LABELS = ("energy", "force", "virial")


@dataclass(frozen=True)
class Measure:
    """What is called a deviation.

    Attributes:
        frequency: steps between two frames of the trajectory.
        real_error: distance from the labels instead of the spread of the models.
        atomic: list the deviation of every atom's force too.
        relative, relative_v: divide deviations of forces, of virials, by their size plus this level; None: do not.
    """

    frequency: int = 1
    real_error: bool = False
    atomic: bool = False
    relative: float | None = None
    relative_v: float | None = None


def write_deviations(potentials: Sequence[Potential], dataset: DataSet, measure: Measure, path: Path) -> None:
    """Add a block for every system to the file, as DeePMD-kit does."""
    evaluator = Evaluator(potentials)
    try:
        with path.open("a", encoding="utf-8") as file, progress("comparing", dataset.total_frames, "frames") as bar:
            if file.tell():
                log.info("%s is there already: what follows is added to it", path)
            for system in range(len(dataset)):
                _write_header(file, dataset.name(system), measure.atomic)
                first = 0
                for batch, answers in evaluator.run(dataset, system, np.arange(dataset.n_frames[system])):
                    _write_rows(file, first, deviations(batch, answers, measure), measure.frequency)
                    first += len(batch.frames)
                    bar.advance(len(batch.frames))
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror or error}",
            where="--output",
            value=str(path),
            remedy="name a file in a folder that exists and that you may write to",
        ) from error


def deviations(batch: MicroBatch, answers: Sequence[Answer], measure: Measure) -> NDArray[np.float64]:
    """One row a frame: max, min and average of the virial's and of the forces' deviation, the energy's, the atoms'."""
    real = real_atoms(batch)
    natoms = real.sum(axis=1).astype(np.float64)
    labels = batch.labels if measure.real_error else None
    virial = _virial_spread(answers, labels, natoms, measure.relative_v)
    force = _force_spread(answers, labels, measure.relative)
    energy = _spread(
        np.stack([answer.energy / natoms for answer in answers]), None if labels is None else labels["energy"] / natoms
    )
    seen = np.where(real, force, np.nan)
    columns = [
        virial.max(axis=1),
        virial.min(axis=1),
        np.linalg.norm(virial, axis=1) / 3,
        np.nanmax(seen, axis=1),
        np.nanmin(seen, axis=1),
        np.nanmean(seen, axis=1),
        energy,
    ]
    table = np.stack(columns, axis=1)
    return np.concatenate([table, force], axis=1) if measure.atomic else table


def _spread(values: NDArray, truth: NDArray | None) -> NDArray:
    """Over the models (first axis): standard deviation, or root mean square distance from the truth."""
    return values.std(axis=0) if truth is None else np.sqrt(((values - truth) ** 2).mean(axis=0))


def _force_spread(
    answers: Sequence[Answer], labels: dict[str, NDArray] | None, level: float | None
) -> NDArray[np.float64]:
    forces = np.stack([answer.force for answer in answers])
    truth = None if labels is None else labels["force"]
    spread = np.linalg.norm(_spread(forces, truth), axis=-1)
    return spread / (np.linalg.norm(_centre(forces, truth), axis=-1) + level) if level is not None else spread


def _virial_spread(
    answers: Sequence[Answer], labels: dict[str, NDArray] | None, natoms: NDArray, level: float | None
) -> NDArray[np.float64]:
    share = natoms[:, None]
    virials = np.stack([answer.virial.reshape(-1, 9) / share for answer in answers])
    truth = None if labels is None else labels["virial"].reshape(-1, 9) / share
    spread = _spread(virials, truth)
    return (
        spread / (np.linalg.norm(_centre(virials, truth), axis=-1, keepdims=True) + level)
        if level is not None
        else spread
    )


def _centre(values: NDArray, truth: NDArray | None) -> NDArray:
    return values.mean(axis=0) if truth is None else truth


def _write_header(file: TextIO, system: str, atomic: bool) -> None:
    names = [f"{_NAMES[0]:10s}", *(f"{name:19s}" for name in _NAMES[1:])]
    if atomic:
        names.append(f"{'atm_devi_f(N)':19s}")
    file.write(f"# {system}\n# {''.join(names)}\n")


def _write_rows(file: TextIO, first: int, table: NDArray, frequency: int) -> None:
    for number, row in enumerate(table, start=first):
        file.write(f"{number * frequency:12d}" + "".join(f"{value:19.6e}" for value in row) + "\n")


def refuse_different_types(potentials: Sequence[Potential], names: Sequence[str]) -> None:
    """Models can be compared only where they mean the same by their types."""
    first = potentials[0].type_map
    for potential, name in zip(potentials, names, strict=True):
        if potential.type_map != first:
            raise UserError(
                f"its type_map {list(potential.type_map)} is not that of {names[0]}, {list(first)}",
                where=name,
                remedy="compare models that were trained with the same type_map",
            )


def warn_about_copies(potentials: Sequence[Potential], names: Sequence[str]) -> None:
    """A model compared with itself never deviates, which looks like certainty."""
    states = [potential.state_dict() for potential in potentials]
    for (one, state), (other, copy) in itertools.combinations(zip(names, states, strict=True), 2):
        if state.keys() == copy.keys() and all(_equal(state[name], copy[name]) for name in state):
            log.warning("%s and %s are the same model: they agree everywhere", one, other)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
