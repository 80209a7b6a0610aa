"""The radial part of an environment row: how a neighbour's weight fades with its distance."""

from __future__ import annotations

from dataclasses import dataclass

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


def radial_at(distance: float, cutoff: Cutoff) -> float:
    """The radial function at one distance. It falls with it: the closest pair has the largest."""
    x = min(max((distance - cutoff.rcut_smth) / (cutoff.rcut - cutoff.rcut_smth), 0.0), 1.0)
    return (x**3 * (-6.0 * x**2 + 15.0 * x - 10.0) + 1.0) / (distance + cutoff.protection)
