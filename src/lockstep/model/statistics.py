"""What is learned from the data before training: spread of the environment rows, energy bias, parameter scale.

All of it is made of sums over frames, so that frames can be shared out among ranks and the sums added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.geometry import Cutoff, Pairs, RowScale
from lockstep.geometry.radial import radial_terms

SMALLEST_ROW_STD = 0.01
"""Below this a row's spread is not trusted (DeePMD-kit's figure)."""
UNSEEN_ROW_STD = 0.1
"""Spread assumed for types that have no centre in the data (DeePMD-kit's figure)."""


@dataclass
class RowSums:
    """Sums over environment rows, for each type of centre; empty slots count as zero rows.

    Attributes:
        sums: [ntypes, 5] centres, radial, radial^2, sum of the three angular components, sum of their squares.
    """

    sums: NDArray[np.float64]

    @classmethod
    def zero(cls, ntypes: int) -> RowSums:
        return cls(np.zeros((ntypes, 5)))

    def add(self, pairs: Pairs, types: NDArray, cutoff: Cutoff) -> None:
        """Add the rows of one frame."""
        real = types >= 0
        self.sums[:, 0] += np.bincount(types[real], minlength=cutoff.ntypes)
        vector = torch.from_numpy(pairs.vector).to(torch.float64)
        distance = torch.linalg.vector_norm(vector, dim=1)
        terms = radial_terms(distance, cutoff)
        angular = terms.angular_over_r * vector.sum(dim=1)
        centre_type = np.repeat(types, pairs.counts.sum(axis=1))
        values = (terms.radial, terms.radial**2, angular, terms.angular**2)
        for column, value in enumerate(values, start=1):
            self.sums[:, column] += np.bincount(centre_type, value.numpy(), minlength=cutoff.ntypes)

    def scale(self, n_slots: int, set_davg_zero: bool) -> RowScale:
        """Mean and spread over centres with `n_slots` slots each."""
        seen = self.sums[:, 0] > 0
        slots = np.where(seen, self.sums[:, 0] * n_slots, 1.0)
        mean = self.sums[:, 1] / slots
        radial = _std(self.sums[:, 2] / slots, mean)
        angular = _std(self.sums[:, 4] / (3 * slots), self.sums[:, 3] / (3 * slots))
        columns = (
            np.zeros_like(mean) if set_davg_zero else mean,
            np.where(seen, radial, UNSEEN_ROW_STD),
            np.where(seen, angular, UNSEEN_ROW_STD),
        )
        return RowScale(*(torch.from_numpy(column) for column in columns))


def _std(mean_square: NDArray, mean: NDArray) -> NDArray:
    return np.maximum(np.sqrt(np.maximum(mean_square - mean**2, 0.0)), SMALLEST_ROW_STD)


@dataclass
class EnergySums:
    """The normal equations of the least-squares fit of frame energies on type counts.

    Attributes:
        gram: [ntypes, ntypes] sum of counts^T counts.
        moment: [ntypes] sum of counts^T energy.
    """

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]

    @classmethod
    def zero(cls, ntypes: int) -> EnergySums:
        return cls(np.zeros((ntypes, ntypes)), np.zeros(ntypes))

    def add(self, counts: NDArray, energies: NDArray) -> None:
        """Add frames, with their atoms of each type [B, ntypes] (one row for all if these are alike), energies [B]."""
        counts = counts.astype(np.float64)
        if len(counts) == 1:
            self.gram += len(energies) * np.outer(counts, counts)
            self.moment += counts[0] * energies.sum()
        else:
            self.gram += counts.T @ counts
            self.moment += counts.T @ energies

    def bias(self, atom_ener: tuple[float | None, ...], rcond: float | None) -> NDArray[np.float64]:
        """The energy of each type; types with a given `atom_ener` keep it, absent ones have zero.

        The fit's smallest solution is taken where compositions leave it open, as in pure water.
        """
        fixed = np.array([value if value is not None else np.nan for value in atom_ener])
        known = ~np.isnan(fixed) if len(fixed) else np.zeros(len(self.moment), dtype=bool)
        bias = np.where(known, fixed, 0.0) if len(fixed) else np.zeros(len(self.moment))
        free = ~known
        if free.any():
            right = self.moment[free] - self.gram[np.ix_(free, known)] @ bias[known]
            # The Gram matrix squares singular values, and with them the threshold below which they count as zero.
            threshold = 1e-13 if rcond is None else rcond**2
            bias[free] = np.linalg.pinv(self.gram[np.ix_(free, free)], rcond=threshold, hermitian=True) @ right
        return bias


@dataclass
class ParameterSums:
    """Sums over frame and atom parameters.

    Attributes:
        sums: [numb_fparam + numb_aparam, 3] how many, sum, sum of squares.
    """

    sums: NDArray[np.float64]
    numb_fparam: int

    @classmethod
    def zero(cls, numb_fparam: int, numb_aparam: int) -> ParameterSums:
        return cls(np.zeros((numb_fparam + numb_aparam, 3)), numb_fparam)

    def add(self, fparam: NDArray | None, aparam: NDArray | None) -> None:
        """Add parameters of frames [B, nf] and of atoms [n, na]."""
        if fparam is not None:
            self._add(slice(0, self.numb_fparam), fparam)
        if aparam is not None:
            self._add(slice(self.numb_fparam, len(self.sums)), aparam)

    def _add(self, columns: slice, values: NDArray) -> None:
        self.sums[columns, 0] += len(values)
        self.sums[columns, 1] += values.sum(axis=0)
        self.sums[columns, 2] += (values**2).sum(axis=0)

    def scale(self, protect: float) -> tuple[NDArray, NDArray]:
        """Mean and inverse spread, which is at least `protect`."""
        number = np.maximum(self.sums[:, 0], 1.0)
        mean = self.sums[:, 1] / number
        spread = np.sqrt(np.maximum(self.sums[:, 2] / number - mean**2, 0.0))
        return mean, 1.0 / np.maximum(spread, protect)
