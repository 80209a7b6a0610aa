"""This rank's share of the stream, read and prepared ahead by background threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from lockstep.data.dataset import DataSet
from lockstep.data.microbatch import MicroBatch
from lockstep.data.stream import Stream
from lockstep.errors import UserError

Prepared = TypeVar("Prepared")

_DEEPEST = 48
"""Micro-batches that are read ahead at most; what decides about those to come may rely on it."""

_ATOMS_AHEAD = 16384
"""Atoms whose geometry is kept ready at most, where one micro-batch does not have more: some 20 kB each."""


def worker_count(environ: Mapping[str, str] = os.environ, cores: int | None = None) -> int:
    """Background threads: `NUM_WORKERS` when set (0: none), otherwise one for each of `cores`, at most 8.

    Without `cores` these are all that the process may run on, for work that nothing else competes with.
    """
    given = environ.get("NUM_WORKERS", "").strip()
    if not given:
        return min(8, len(os.sched_getaffinity(0)) if cores is None else cores)
    if not given.isdecimal():
        raise UserError(
            "expected a number of threads",
            where="NUM_WORKERS",
            value=given,
            remedy="for example NUM_WORKERS=4",
        )
    return int(given)


def depth_for(workers: int, atoms: int) -> int:
    """How many micro-batches of so many atoms are worth preparing ahead, one at least."""
    return max(1, min(2 * workers, _ATOMS_AHEAD // max(1, atoms)))


class DpLoaderSet(Generic[Prepared]):
    """Iterates over micro-batches start + rank, start + rank + size, ... with what `prepare` made of it.

    Threads read and prepare up to `depth` micro-batches ahead; they arrive in order. An error in a thread is
    raised by `next()` when its micro-batch is due, and ends the iteration. With `workers=0` everything
    happens in `next()`.

    Attributes:
        waited: seconds that `next()` has spent waiting for data.
        prepared: seconds of processor time that `prepare` has taken in threads, for what `next()` has given out.
        frames: how many frames that is.
    """

    def __init__(
        self,
        dataset: DataSet,
        stream: Stream,
        *,
        start: int,
        rank: int,
        size: int,
        prepare: Callable[[MicroBatch], Prepared],
        workers: int | None = None,
        depth: int | None = None,
    ) -> None:
        assert 0 <= rank < size
        self._dataset, self._stream, self._prepare = dataset, stream, prepare
        self._next, self._size = start + rank, size
        workers = worker_count() if workers is None else workers
        self._depth = max(1, min(depth or 2 * workers, _DEEPEST))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        self._pending: deque[Future[tuple[MicroBatch, Prepared, float]]] = deque()
        self._closed = False
        self.waited = 0.0
        self.prepared = 0.0
        self.frames = 0

    def __iter__(self) -> Iterator[tuple[MicroBatch, Prepared]]:
        return self

    def __next__(self) -> tuple[MicroBatch, Prepared]:
        if self._closed:
            raise StopIteration
        began = time.perf_counter()
        try:
            micro_batch, prepared, seconds = self._take()
        except BaseException:
            self.close()
            raise
        finally:
            self.waited += time.perf_counter() - began
        if self._pool is not None:
            self.prepared += seconds
        self.frames += len(micro_batch.frames)
        return micro_batch, prepared

    def __enter__(self) -> DpLoaderSet[Prepared]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads and wait for them. May be called again."""
        self._closed = True
        self._pending.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self) -> tuple[MicroBatch, Prepared, float]:
        if self._pool is None:
            return self._load(*self._advance())
        while len(self._pending) <= self._depth:
            self._pending.append(self._pool.submit(self._load, *self._advance()))
        return self._pending.popleft().result()

    def _advance(self) -> tuple[int, int, int]:
        """Number, system and turn of the next micro-batch (drawn here: the stream likes to go forward)."""
        number = self._next
        self._next += self._size
        return (number, *self._stream.draw(number))

    def _load(self, number: int, system: int, turn: int) -> tuple[MicroBatch, Prepared, float]:
        micro_batch = self._dataset.read(system, self._stream.frames(system, turn), number)
        began = time.thread_time()
        prepared = self._prepare(micro_batch)
        return micro_batch, prepared, time.thread_time() - began
