"""The constants that bring environment rows to zero mean and unit spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowScale:
    """Mean and spread of the rows, for each type of centre.

    Attributes:
        mean: [ntypes] of the radial component; the angular components' mean is zero by symmetry.
        std_radial: [ntypes] spread of the radial component.
        std_angular: [ntypes] spread shared by the three angular components.
    """

    mean: Tensor
    std_radial: Tensor
    std_angular: Tensor

    @classmethod
    def unit(cls, ntypes: int) -> RowScale:
        zero, one = torch.zeros(ntypes, dtype=torch.float64), torch.ones(ntypes, dtype=torch.float64)
        return cls(zero, one, one.clone())

    def to(self, device: torch.device | str) -> RowScale:
        return RowScale(self.mean.to(device), self.std_radial.to(device), self.std_angular.to(device))

    @property
    def empty(self) -> Tensor:
        """[ntypes] the radial component of an empty slot: what a neighbour at the cutoff gives."""
        return -self.mean / self.std_radial
