"""Signs of work: what tells a rank that is slow from one that hangs, though both are alive."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from lockstep.parallel.watch.progress import Progress
from lockstep.phases import CHECKPOINT, OUTPUT, START, VALIDATION

_BUSY_SHARE = 0.1
"""Share of a core that a process uses which does something; this program's own threads need far less to keep watch."""
_BUSY_BYTES = 1 << 14
"""Bytes read and written between two looks by a process that does something."""
_PATIENCE = 10
"""Times the usual limit that a rank may seem idle where it waits for disks or the network by itself."""
_LONG_PHASES = (START, VALIDATION, CHECKPOINT, OUTPUT)


class Work:
    """Looks at this process from its side channel's thread, about once a second."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._before = self._traces()
        self._looked = self._worked = time.monotonic()

    def idle(self) -> float:
        """Seconds since the last sign of work: another phase, computation, bytes read or written, a disk in use."""
        now, traces, before = time.monotonic(), self._traces(), self._before
        elapsed = now - self._looked
        self._looked, self._before = now, traces
        moved = traces[0] != before[0]
        computed = traces[1] - before[1] > _BUSY_SHARE * elapsed
        copied = traces[2] - before[2] > _BUSY_BYTES
        if moved or computed or copied or _in_kernel():
            self._worked = now
        return now - self._worked

    def _traces(self) -> tuple[object, float, int]:
        progress = self._progress
        return (progress.step, progress.phase, progress.counts()), time.process_time(), _bytes_copied()


def patience(phase: str, timeout: float) -> float:
    """Seconds that a rank may seem idle in a phase before it counts as hanging."""
    return timeout * (_PATIENCE if phase in _LONG_PHASES else 1)


def _bytes_copied() -> int:
    """Bytes that this process has read and written, wherever from and to."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        read, written = Path("/proc/self/io").read_text().splitlines()[:2]
        return int(read.split()[1]) + int(written.split()[1])
    return 0


def _in_kernel() -> bool:
    """Whether the training's thread waits for a disk: it cannot even be interrupted then."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/self/task/{os.getpid()}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "D"
    return False
