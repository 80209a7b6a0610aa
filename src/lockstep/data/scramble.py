"""Numbers that look drawn at random but follow from other numbers: the same on every rank and machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_ROUNDS = 6  # an even number, after which the halves are back in their places
_FEW = 6
_BITS, _ODD, _OTHER = 2**64 - 1, 0x9FB21C651E98DF25, 0xD6E8FEB86659FD93


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


class Permutation:
    """A shuffled order of the numbers below `n`, computed at the places asked for: nothing is stored.

    A Feistel network on pairs (left, right) with left * columns + right for a number (Black and Rogaway 2002): every
    round adds to one half a scrambled function of the other, which can be undone, so that no two places meet. The few
    pairs that stand for no number below `n` are sent through again until they do.

    Args:
        key: what the order follows from, any integers.
    """

    def __init__(self, n: int, key: Sequence[int]) -> None:
        self.n = n
        rows = max(1, math.isqrt(n - 1) + 1)
        self._sizes = rows, -(-n // rows)
        mixed = 0
        for part in key:
            mixed = _hashed(mixed ^ (part & _BITS))
        self._keys = [_hashed(mixed ^ number) for number in range(_ROUNDS)]

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at some places."""
        if len(places) <= _FEW:  # faster in Python than in a hundred calls of NumPy
            return np.array([self._number(place) for place in places.tolist()], dtype=np.int64)
        numbers = self._once(places.astype(np.uint64))
        outside = numbers >= self.n
        while outside.any():
            numbers[outside] = self._once(numbers[outside])
            outside = numbers >= self.n
        return numbers.astype(np.int64)

    def _number(self, place: int) -> int:
        rows, columns = self._sizes
        while True:
            left, right = divmod(place, columns)
            for key in self._keys:
                left, right = right, (left + _hashed(right ^ key)) % rows
                rows, columns = columns, rows
            place = left * columns + right
            if place < self.n:
                return place

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        rows, columns = map(np.uint64, self._sizes)
        left, right = np.divmod(numbers, columns)
        for key in self._keys:
            h = (right ^ np.uint64(key)) * np.uint64(_ODD)
            h = (h ^ (h >> np.uint64(32))) * np.uint64(_OTHER)
            left, right = right, (left + (h >> np.uint64(32))) % rows
            rows, columns = columns, rows
        return left * columns + right


def _hashed(value: int) -> int:
    """32 bits of a number of 64; what `Permutation._once` does with whole arrays."""
    h = value * _ODD & _BITS
    return ((h ^ h >> 32) * _OTHER & _BITS) >> 32
