"""The functions in which embedding nets are expanded: B-splines in a stretched radial variable.

An embedding net is a smooth function of one number. Written as sum_k b_k(s) C_k, all that depends on the neighbours
is b_k(s), which has no weights in it and so belongs to geometry. Splines of degree seven on n intervals need about
as many coefficients as Chebyshev polynomials for the same error, but a neighbour touches eight of them, not all.

The variable is asinh(s / S0) of the radial function s (1/r times the switch): bonded neighbours lie far from all
others in s itself, and this brings the net's features to about the same width everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

DEGREE = 7
TOUCHED = DEGREE + 1
"""How many splines are not zero at a point."""
EDGE = 4
"""Intervals at either edge that have more than their share of nodes."""
S0 = 0.25
"""Scale of the stretching in 1/Angstrom: linear below, logarithmic above."""


def spline_pieces(degree: int = DEGREE) -> NDArray[np.float64]:
    """[power, j] the splines that live on an interval, as polynomials of the position in it (0 to 1).

    Column j is the spline numbered `interval + j`. By the recursion N_d(x) = x/d N_{d-1}(x) + (d+1-x)/d N_{d-1}(x-1).
    """
    pieces = [np.array([1.0])]
    for d in range(1, degree + 1):
        longer = [np.zeros(d + 1) for _ in range(d + 1)]
        for i, piece in enumerate(pieces):
            longer[i] += polynomial.polymul([i / d, 1 / d], piece)
            longer[i + 1] += polynomial.polymul([(d - i) / d, -1 / d], piece)
        pieces = longer
    return np.ascontiguousarray(np.array(pieces[::-1]).T)


PIECES = spline_pieces()
SLOPES = np.ascontiguousarray(PIECES[1:] * np.arange(1, TOUCHED)[:, None])
"""The pieces' derivatives with respect to the position in the interval."""


@dataclass(frozen=True)
class SplineBasis:
    """Splines on `intervals` equal intervals of the stretched variable, from s = 0 to `s_max`."""

    intervals: int
    s_max: float

    @property
    def size(self) -> int:
        """Number of splines."""
        return self.intervals + DEGREE

    @property
    def per_unit(self) -> float:
        """Intervals per unit of asinh(s / S0)."""
        return self.intervals / float(np.arcsinh(self.s_max / S0))

    def position(self, s: NDArray) -> NDArray[np.float64]:
        """Where s lies, counted in intervals."""
        return np.arcsinh(np.asarray(s) / S0) * self.per_unit

    def radial(self, position: NDArray) -> NDArray[np.float64]:
        """The s at a position."""
        return np.sinh(np.asarray(position) / self.per_unit) * S0

    def values(self, position: NDArray, slope: bool = False) -> NDArray[np.float64]:
        """[len(position), size] all splines (or their derivatives by position) at some positions."""
        cell = np.clip(np.floor(position).astype(np.int64), 0, self.intervals - 1)
        pieces = SLOPES if slope else PIECES
        powers = (position - cell)[:, None] ** np.arange(len(pieces))
        result = np.zeros((len(position), self.size))
        np.put_along_axis(result, cell[:, None] + np.arange(TOUCHED), powers @ pieces, axis=1)
        return result

    @cached_property
    def nodes(self) -> NDArray[np.float64]:
        """Positions at which a net is evaluated to be expanded: the interval ends, and closer towards both edges.

        Nothing beyond an edge holds the splines there, so that fewer nodes would leave them to rounding.
        """
        edge = np.linspace(0.0, EDGE, 4 * EDGE + 1)
        inner = np.arange(EDGE + 1, self.intervals - EDGE)
        return np.concatenate([edge, inner, self.intervals - edge[::-1]])

    @cached_property
    def fit(self) -> NDArray[np.float64]:
        """[size, nodes] the least-squares map from values at the nodes to coefficients."""
        return np.asarray(np.linalg.pinv(self.values(self.nodes)), dtype=np.float64)

    @cached_property
    def between(self) -> NDArray[np.float64]:
        """Positions half-way between nodes, where the expansion is worst: for measuring its error."""
        return (self.nodes[1:] + self.nodes[:-1]) / 2
