"""How far long work has come: a bar for people at a terminal, a line now and then for everybody else."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

_PATIENCE = 20.0


class Counting(Protocol):
    """Told of every piece of work that is done."""

    def advance(self, count: int) -> None: ...


@contextmanager
def progress(task: str, total: int, unit: str) -> Iterator[Counting]:
    """Progress of `total` units of work. Short work shows nothing in a log."""
    if not sys.stderr.isatty():
        yield Lines(task, total, unit)
        return
    from lockstep.observe.live import TaskBar

    with TaskBar(task, total, unit) as bar:
        yield bar


class Lines:
    """A log line from time to time, with speed and time left."""

    def __init__(self, task: str, total: int, unit: str, patience: float = _PATIENCE) -> None:
        self._task, self._total, self._unit, self._patience = task, total, unit, patience
        self._done = 0
        self._began = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._last < self._patience or self._done >= self._total:
            return
        self._last = now
        rate = self._done / (now - self._began)
        log.info(
            "%s: %d of %d %s (%.0f %%), %.3g a second, %.0f s left",
            self._task,
            self._done,
            self._total,
            self._unit,
            100 * self._done / self._total,
            rate,
            (self._total - self._done) / rate,
        )
