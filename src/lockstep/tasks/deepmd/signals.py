"""What a Kalman filter measures: the energies of a micro-batch, then the forces on a few atoms at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lockstep.tasks.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.config.foreign import KalmanConfig

ATOMS = 6
"""How many atoms' forces are one signal."""
SIGNALS = 5
"""The energies, and four groups of atoms."""


@dataclass(frozen=True)
class Signal:
    """What is predicted, by how much it falls short of the labels, and all errors of the micro-batch."""

    predicted: Tensor
    error: Tensor
    metrics: Metrics


def measured(
    predicted: Mapping[str, Tensor], labels: Mapping[str, Any], group: Tensor | None, weight: float
) -> tuple[Tensor, Tensor]:
    """Prediction and error of one signal: of the energies, or of the forces on a group of atoms.

    Every component is taken with the sign with which its error is positive, so that errors never cancel.
    """
    name = "energy" if group is None else "force"
    values, wanted, found = predicted[name], labels[name].reshape(predicted[name].shape), labels[f"find_{name}"]
    atoms = predicted["force"].shape[1]
    scale = atoms if group is None else atoms * group.numel() * 3
    if group is not None:
        values, wanted = values[:, group], wanted[:, group]
    signs = torch.where(wanted < values, -weight, weight)
    error = (signs * (wanted - values)).detach().mean() / atoms * math.sqrt(len(values))
    return (signs * values).sum() * float(found) / scale, error * float(found)


def drawn_atoms(real: Tensor, number: int, seeds: list[int]) -> Tensor:
    """The group of atoms that signal `number` is about, out of those that are real in all frames."""
    candidates = np.flatnonzero(real.all(dim=0).cpu().numpy())
    groups = np.random.default_rng(seeds).choice(candidates, (SIGNALS - 1, ATOMS))
    return torch.from_numpy(groups[number - 1]).to(real.device)


def weights_at(config: KalmanConfig, done: float) -> tuple[float, float]:
    """The weights of energies and forces when a part of the training is over: they change by equal factors."""
    energy = config.kf_start_pref_e * (config.kf_limit_pref_e / config.kf_start_pref_e) ** done
    force = config.kf_start_pref_f * (config.kf_limit_pref_f / config.kf_start_pref_f) ** done
    return energy, force
