"""The loops of `contraction.py` and `folding.py`, compiled.

`folded`: of the symmetric matrix at the beginning, pairs (m, a) of numbers below `axis`, only those with a <= m exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.compiled import compiled, inlined, unsigned


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


@inlined
def _spread_one(x: Any, p: Any, a: int, out: Any) -> None:
    """The same of one column of P."""
    for c in range(4):
        total = x.dtype.type(0)
        for m in range(x.shape[1]):
            total += p[m] * x[c, m]
            out[c, m] += p[m] * x[c, a]
        out[c, a] += total


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
        out = result[i]
        for a in range(0, axis - 1, 2):
            x0, x1, x2, x3 = x[i, 0, a], x[i, 1, a], x[i, 2, a], x[i, 3, a]
            y0, y1, y2, y3 = x[i, 0, a + 1], x[i, 1, a + 1], x[i, 2, a + 1], x[i, 3, a + 1]
            s0, s1, s2, s3 = zero, zero, zero, zero
            t0, t1, t2, t3 = zero, zero, zero, zero
            for m in range(width):
                v, w = turned[a, m], turned[a + 1, m]
                s0 += v * x[i, 0, m]
                s1 += v * x[i, 1, m]
                s2 += v * x[i, 2, m]
                s3 += v * x[i, 3, m]
                t0 += w * x[i, 0, m]
                t1 += w * x[i, 1, m]
                t2 += w * x[i, 2, m]
                t3 += w * x[i, 3, m]
                out[0, m] += v * x0 + w * y0
                out[1, m] += v * x1 + w * y1
                out[2, m] += v * x2 + w * y2
                out[3, m] += v * x3 + w * y3
            out[0, a] += s0
            out[1, a] += s1
            out[2, a] += s2
            out[3, a] += s3
            out[0, a + 1] += t0
            out[1, a + 1] += t1
            out[2, a + 1] += t2
            out[3, a + 1] += t3
        if axis % 2:
            _spread_one(x[i], turned[axis - 1], axis - 1, out)


@compiled
def fold_rows(weight: Any, below: Any, above: Any, share: Any, result: Any) -> None:
    """result[k] = share[k] (weight[below[k]] + weight[above[k]])."""
    for k in range(below.size):
        one, other, out = weight[below[k]], weight[above[k]], result[k]
        for j in range(out.size):
            out[j] = share[k] * (one[j] + other[j])


@compiled
def unfold_rows(gradient: Any, below: Any, above: Any, first: bool, result: Any) -> None:
    """result[below[k]] and result[above[k]] become gradient[k]; that is added to them, if they are not the first."""
    for k in range(below.size):
        for number in range(2 if above[k] != below[k] else 1):
            own, out = gradient[k], result[below[k] if number == 0 else above[k]]
            if first:
                for j in range(out.size):
                    out[j] = own[j]
            else:
                for j in range(out.size):
                    out[j] += own[j]
