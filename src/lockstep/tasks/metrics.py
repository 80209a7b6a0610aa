"""Errors as sums and counts, and the loss of a micro-batch: what every task gives to the loop.

Errors leave a task as sums and counts, not as means: those of several micro-batches and of several ranks add up to
exactly the error of all their frames together, which averages of square roots never do. Nothing here waits for the
device; only `Metrics.shown` does, when a row is displayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from lockstep.device import device_of


@dataclass(frozen=True)
class Column:
    """An error of the learning curve: its name, and how sum and count become the number that is shown.

    `branch` is the model whose error it is, in a run of several.
    """

    quantity: str
    shown: Literal["rms", "mean"] = "rms"
    branch: str = ""

    @property
    def name(self) -> str:
        """What tells it from all other columns of the run."""
        return f"{self.quantity}_{self.branch}" if self.branch else self.quantity

    def heading(self, data: Literal["val", "trn"]) -> str:
        """Its name in the learning curve, as DeePMD-kit has it."""
        return "_".join(filter(None, (self.quantity, data, self.branch)))

    def number(self, total: float, count: float) -> float:
        """The number to display; nan where nothing was counted."""
        if count == 0:
            return math.nan
        mean = total / count
        if self.shown == "mean":
            return mean
        return math.sqrt(mean) if mean >= 0 else math.nan


@dataclass(frozen=True)
class Metrics:
    """Error sums and their counts, as one flat tensor (sums, then counts) that ranks can add in one message.

    The first column is the loss itself.
    """

    columns: tuple[Column, ...]
    values: Tensor

    def __add__(self, other: Metrics) -> Metrics:
        assert self.columns == other.columns, (self.columns, other.columns)
        return replace(self, values=self.values + other.values)

    def shown(self) -> dict[str, float]:
        """The numbers to display, sorted by name."""
        numbers = device_of(self.values.device).fetch(self.values)()
        sums, counts = numbers[: len(self.columns)], numbers[len(self.columns) :]
        rows = zip(self.columns, sums, counts, strict=True)
        return {column.name: column.number(*row) for column, *row in sorted(rows, key=lambda row: row[0].name)}


def energy_differences(
    predicted: Mapping[str, Tensor], labels: Mapping[str, Tensor], real: Tensor
) -> dict[str, Tensor]:
    """What is predicted less what is labelled: of frames per atom, of atoms where they are `real` [B, n]."""
    atoms = real.sum(dim=1, keepdim=True)
    found = {}
    for name in ("energy", "virial"):
        if name in labels and name in predicted:
            difference = predicted[name].detach().double() - labels[name].double().reshape(predicted[name].shape)
            found[name] = difference.reshape(len(real), -1) / atoms
    for name in ("force", "force_mag"):
        if name in labels and name in predicted:
            difference = predicted[name].detach().double() - labels[name].double().reshape(predicted[name].shape)
            found[name] = difference.reshape(*real.shape, 3)[real]
    return found


@dataclass(frozen=True)
class LossTerms:
    """The loss of one micro-batch, differentiable, and its error sums, detached."""

    total: Tensor
    metrics: Metrics
