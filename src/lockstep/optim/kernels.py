"""The loops of `damped.py`, compiled: what torch does in a dozen passes over memory, in three.

Chunks are slices that are gone through from their first number: the compiler makes vectors of that, and single numbers
of a range in the middle of an array, which takes six times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.compiled import compiled

CHUNK = 4096
"""Numbers that are added up in float32 before the sum is added to others in float64."""


@compiled
def take_in(gradient: Any, mean: Any, square: Any, keep: tuple[Any, Any], total: Any) -> None:
    """Running means of the gradient and of its square; the sum of the latter is added to total[0]."""
    keep_mean, keep_square = keep
    new_mean, new_square = np.float32(1.0) - keep_mean, np.float32(1.0) - keep_square
    for start in range(0, gradient.size, CHUNK):
        gradients, means = gradient[start : start + CHUNK], mean[start : start + CHUNK]
        squares, part = square[start : start + CHUNK], np.float32(0.0)
        for i in range(gradients.size):
            g = gradients[i]
            means[i] = keep_mean * means[i] + new_mean * g
            squared = keep_square * squares[i] + new_square * g * g
            squares[i] = squared
            part += squared
        total[0] += part


@compiled
def direct(mean: Any, square: Any, floors: tuple[Any, Any], result: Any, totals: Any) -> None:
    """result = mean / (root + floors[1]); totals = the squared lengths with the first floor and with the second."""
    low, high = floors
    for start in range(0, mean.size, CHUNK):
        means, squares = mean[start : start + CHUNK], square[start : start + CHUNK]
        results, free, held = result[start : start + CHUNK], np.float32(0.0), np.float32(0.0)
        for i in range(means.size):
            root = np.sqrt(squares[i])
            undamped, damped = means[i] / (root + low), means[i] / (root + high)
            results[i] = damped
            free += undamped * undamped
            held += damped * damped
        totals[0] += free
        totals[1] += held


@compiled
def move(weight: Any, keep: float, direction: Any, rate: float) -> None:
    """weight = keep weight - rate direction, in the weight's own precision."""
    for i in range(weight.size):
        weight[i] = keep * weight[i] - rate * direction[i]
