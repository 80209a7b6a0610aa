"""Numbers that look drawn at random but follow from other numbers: the same on every rank and machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def scrambled(numbers: ArrayLike) -> NDArray[np.uint64]:
    """A number of 64 bits for each number: splitmix64's (Steele, Lea and Flood 2014), no two alike."""
    with np.errstate(over="ignore"):
        z = (np.asarray(numbers).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        return z ^ (z >> np.uint64(31))


def spread(total: int, count: int) -> NDArray[np.int64]:
    """`count` of the numbers below `total`, one from each of as many equal parts of them.

    Evenly spread, because trajectories drift and lists of systems are sorted; not in even steps, because these could
    keep time with something that repeats in the data.
    """
    if count >= total:
        return np.arange(total)
    edges = np.array([total * part // count for part in range(count + 1)], dtype=np.int64)
    within = scrambled(np.arange(count)) % np.diff(edges).astype(np.uint64)
    return edges[:-1] + within.astype(np.int64)
