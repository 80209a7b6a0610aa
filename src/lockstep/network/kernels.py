"""The loops of `contraction.py`, compiled.

`folded`: of the symmetric matrix at the beginning, pairs (m, a) of numbers below `axis`, only those with a <= m exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.compiled import compiled, unsigned


@compiled
def contract(x: Any, axis: int, folded: bool, result: Any) -> None:
    """result[i, m, a] = sum_c x[i, c, m] x[i, c, a]."""
    for i in range(x.shape[0]):
        k = 0
        for m in range(x.shape[2]):
            x0, x1, x2, x3 = x[i, 0, m], x[i, 1, m], x[i, 2, m], x[i, 3, m]
            n = min(m + 1, axis) if folded else axis
            for a in range(n):
                result[i, k + a] = x0 * x[i, 0, a] + x1 * x[i, 1, a] + x2 * x[i, 2, a] + x3 * x[i, 3, a]
            k += n


@compiled
def polarise(x: Any, y: Any, axis: int, folded: bool, result: Any) -> None:
    """result[i, m, a] = sum_c y[i, c, m] x[i, c, a] + x[i, c, m] y[i, c, a]."""
    for i in range(x.shape[0]):
        k = unsigned(0)
        for m in range(x.shape[2]):
            x0, x1, x2, x3 = x[i, 0, m], x[i, 1, m], x[i, 2, m], x[i, 3, m]
            y0, y1, y2, y3 = y[i, 0, m], y[i, 1, m], y[i, 2, m], y[i, 3, m]
            n = min(m + 1, axis) if folded else axis
            for number in range(n):
                a = unsigned(number)
                result[i, k + a] = (
                    y0 * x[i, 0, a]
                    + y1 * x[i, 1, a]
                    + y2 * x[i, 2, a]
                    + y3 * x[i, 3, a]
                    + x0 * y[i, 0, a]
                    + x1 * y[i, 1, a]
                    + x2 * y[i, 2, a]
                    + x3 * y[i, 3, a]
                )
            k += unsigned(n)


@compiled
def spread(x: Any, p: Any, axis: int, folded: bool, result: Any) -> None:
    """result[i, c, m] += sum_a p[i, m, a] x[i, c, a], and result[i, c, a] += sum_m x[i, c, m] p[i, m, a].

    P is turned round first, so that both sums run along the wide axis: four times as fast as along the short one.
    """
    width, zero = x.shape[2], x.dtype.type(0)
    turned = np.zeros((axis, width), x.dtype)
    for i in range(x.shape[0]):
        k = unsigned(0)
        for m in range(width):
            n = min(m + 1, axis) if folded else axis
            for a in range(n):
                turned[a, m] = p[i, k + unsigned(a)]
            k += unsigned(n)
        for a in range(axis):
            x0, x1, x2, x3 = x[i, 0, a], x[i, 1, a], x[i, 2, a], x[i, 3, a]
            s0, s1, s2, s3 = zero, zero, zero, zero
            for m in range(width):
                w = turned[a, m]
                s0 += w * x[i, 0, m]
                s1 += w * x[i, 1, m]
                s2 += w * x[i, 2, m]
                s3 += w * x[i, 3, m]
                result[i, 0, m] += w * x0
                result[i, 1, m] += w * x1
                result[i, 2, m] += w * x2
                result[i, 3, m] += w * x3
            result[i, 0, a] += s0
            result[i, 1, a] += s1
            result[i, 2, a] += s2
            result[i, 3, a] += s3
