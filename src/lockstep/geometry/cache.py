"""Neighbour pairs of frames seen before, and what else is found once for each, kept within a memory budget."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar, cast

from lockstep.errors import UserError
from lockstep.geometry.pairs import Pairs
from lockstep.memory import free_memory


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Found = TypeVar("Found", bound=_Sized)


class PairCache:
    """Remembers the pairs of a frame, so that no neighbour list is built twice while the budget lasts.

    Frames are drawn in shuffled passes, so each is as likely as any other to come next: what is in the cache stays,
    and what does not fit is computed again when it is needed. Throwing out old entries would only cost hits.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._pairs: dict[Hashable, _Sized] = {}
        self._lock = threading.Lock()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def clear(self) -> None:
        """Forget everything, for example pairs found with other slots."""
        self._pairs.clear()
        self.nbytes = 0

    def known(self, key: Hashable) -> Pairs | None:
        """The pairs under `key` (a frame and a cutoff, say), if they are remembered."""
        known = self._pairs.get(key)
        if known is not None:
            self.hits += 1
        return cast("Pairs | None", known)

    def get(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """The pairs, or whatever has a size, under `key`: found by `find` if they are not remembered."""
        known = self.known(key)
        if known is not None:
            return cast(Found, known)
        found = find()
        with self._lock:
            self.misses += 1
            if key not in self._pairs and self.nbytes + found.nbytes <= self._budget:
                self._pairs[key] = found
                self.nbytes += found.nbytes
        return found


def cache_budget(setting: str | float, local_ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """Bytes for a rank's cache.

    DP_CACHE_MEMORY, in MB, wins over `training.cache_memory`; `auto` is a quarter of the memory that is free for
    this rank now, within the limits of the job.
    """
    given = environ.get("DP_CACHE_MEMORY", "").strip() or setting
    if given == "auto":
        return free_memory(local_ranks) // 4
    try:
        megabytes = float(given)
    except ValueError:
        megabytes = math.nan
    if not megabytes >= 0:
        raise UserError(
            "expected a number of megabytes, or auto",
            where="environment variable DP_CACHE_MEMORY",
            value=given,
            remedy="0 keeps nothing",
        )
    return int(megabytes * 1e6)
