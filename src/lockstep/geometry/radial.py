"""The radial part of an environment row: how a neighbour's weight fades with its distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.cutoff import Cutoff


@dataclass(frozen=True)
class RadialTerms:
    """Values and slopes of the two radial functions at each pair's distance.

    An un-normalised environment row is (radial, angular * u) with u the unit vector to the neighbour.
    """

    radial: Tensor
    radial_slope: Tensor
    angular: Tensor
    angular_slope: Tensor
    angular_over_r: Tensor


def switch(r: Tensor, rcut_smth: float, rcut: float) -> tuple[Tensor, Tensor]:
    """The quintic switch and its derivative: 1 below `rcut_smth`, 0 beyond `rcut`, twice differentiable."""
    x = ((r - rcut_smth) / (rcut - rcut_smth)).clamp(0.0, 1.0)
    value = x**3 * (-6.0 * x**2 + 15.0 * x - 10.0) + 1.0
    slope = -30.0 * (x * (x - 1.0)) ** 2 / (rcut - rcut_smth)
    return value, slope


def radial_terms(r: Tensor, cutoff: Cutoff) -> RadialTerms:
    """Evaluate the radial functions w/(r+p) and w r/(r+p)^2 of the switch w and the protection p."""
    w, dw = switch(r, cutoff.rcut_smth, cutoff.rcut)
    inverse = 1.0 / (r + cutoff.protection)
    radial = w * inverse
    radial_slope = (dw - radial) * inverse
    if cutoff.protection == 0.0:
        return RadialTerms(radial, radial_slope, radial, radial_slope, radial * inverse)
    angular_over_r = radial * inverse
    angular = angular_over_r * r
    angular_slope = (dw * r + w * (cutoff.protection - r) * inverse) * inverse**2
    return RadialTerms(radial, radial_slope, angular, angular_slope, angular_over_r)


def largest_radial(vector: NDArray, cutoff: Cutoff) -> float:
    """The largest value of the radial function over some pairs: that of the closest one."""
    if len(vector) == 0:
        return 0.0
    closest = np.sqrt(np.einsum("pc,pc->p", vector, vector).min())
    return float(radial_terms(torch.tensor(closest, dtype=torch.float64), cutoff).radial)
