"""A small model of what a step costs on W workers, fitted to measured steps.

    T(W) = k * (compute / S + sharing * (1 - 1 / S))
           + latency * log2(W) + transfer * 2 (W - 1) / W + imbalance * sqrt(k) / S * m(W)

with k micro-batches a worker and step, each shared by S workers; `sharing` is what is left of a micro-batch when it is
shared by very many. A tree of messages is log2(W) deep; a ring moves 2 (W - 1) / W times the
gradient over every link; m(W) is how far the slowest of W equal, normally distributed workers lies above their mean:
all wait for it. The five coefficients, in seconds, are not negative and least in the sum of the squared relative
errors. Where the runs tell how a step's time divides, own work, communication and waiting are fitted too, with half
the weight: that settles what the totals of two or three runs leave open. A weak pull towards zero shares out what even
the parts leave open (between 1 and 2 workers latency and transfer grow alike).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_PARTS, _PULL = 0.5, 1e-3
"""Weights of a step's parts and of the pull, against 1 for the whole of a measured step."""


@dataclass(frozen=True)
class Point:
    """A measured step.

    Attributes:
        accumulate: micro-batches a worker and step.
        communication: the share of its seconds spent in exchanges, waiting left out; None where nobody knows.
        wait: the share spent waiting for slower workers.
        per_frame: workers that share a micro-batch.
    """

    workers: int
    accumulate: int
    seconds: float
    communication: float | None = None
    wait: float | None = None
    per_frame: int = 1


@dataclass(frozen=True)
class CostModel:
    """The coefficients, in seconds."""

    compute: float
    latency: float
    transfer: float
    imbalance: float
    sharing: float = 0.0

    def seconds(self, workers: int, accumulate: int, per_frame: int = 1) -> float:
        """The time of a step."""
        return float(_row(workers, accumulate, per_frame) @ astuple(self))

    def error(self, point: Point) -> float:
        """How far the model is from a measured step, relative to it."""
        return self.seconds(point.workers, point.accumulate, point.per_frame) / point.seconds - 1.0


def fit(points: Sequence[Point]) -> CostModel:
    """The coefficients that describe the points best."""
    equations = [equation for point in points for equation in _equations(point)]
    unit = float(np.mean([point.seconds / point.accumulate for point in points]))
    # Compute is known from any single run; pulling at it would only bias it.
    equations += [(math.sqrt(_PULL) / unit * np.eye(5)[column], 0.0) for column in (1, 2, 3, 4)]
    matrix = np.array([row for row, _ in equations])
    target = np.array([value for _, value in equations])
    return CostModel(*map(float, non_negative_least_squares(matrix, target)))


def held_out_error(points: Sequence[Point]) -> float | None:
    """The error on the most workers of a model that was fitted to the others; None for fewer than three points."""
    if len(points) < 3:
        return None
    *rest, last = sorted(points, key=lambda point: point.workers)
    return fit(rest).error(last)


def non_negative_least_squares(matrix: NDArray, target: NDArray) -> NDArray:
    """The best x >= 0; by trying all sets of positive unknowns, of which a model of five has thirty-two."""
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(target @ target)
    for chosen in _subsets(range(columns)):
        solution = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
        if (solution < 0).any():
            continue
        residual = float(np.sum((matrix[:, chosen] @ solution - target) ** 2))
        if residual < least:
            best, least = np.zeros(columns), residual
            best[list(chosen)] = solution
    return best


def slowest_of(workers: int) -> float:
    """The expected largest of `workers` standard normal numbers: 0 for one, 0.56 for two, 3.04 for 512."""
    x, step = np.linspace(0.0, 9.0, 2001, retstep=True)
    below = 0.5 * (1.0 + np.array([math.erf(value / math.sqrt(2.0)) for value in x]))
    beyond = 1.0 - below**workers - (1.0 - below) ** workers
    return float(step * (beyond.sum() - (beyond[0] + beyond[-1]) / 2.0))


def _equations(point: Point) -> list[tuple[NDArray, float]]:
    row = _row(point.workers, point.accumulate, point.per_frame) / point.seconds
    if point.communication is None or point.wait is None:
        return [(row, 1.0)]
    own = 1.0 - point.communication - point.wait
    parts = ((own, (0, 4)), (point.communication, (1, 2)), (point.wait, (3,)))
    weight = math.sqrt(_PARTS)
    return [
        (row, 1.0),
        *((weight * np.where(np.isin(range(5), columns), row, 0.0), weight * share) for share, columns in parts),
    ]


def _row(workers: int, accumulate: int, per_frame: int) -> NDArray:
    """What each coefficient is multiplied by."""
    ring = 2.0 * (workers - 1) / workers
    noise = math.sqrt(accumulate) / per_frame * slowest_of(workers)
    shared = accumulate * (1.0 - 1.0 / per_frame)
    return np.array([accumulate / per_frame, math.log2(workers), ring, noise, shared])


def _subsets(columns: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return (chosen for size in range(1, len(columns) + 1) for chosen in combinations(columns, size))
