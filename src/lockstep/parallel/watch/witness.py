"""A witness beside each rank: a tiny process that can still speak and act where the rank cannot.

It is a fork of the rank, in a session of its own, that sleeps in one `select`. It needs no interpreter lock of the
rank's, which MPI keeps while it looks for the other ranks, and it outlives the rank. It is there for two things:

- Ranks that never meet. A rank that still looks for the others after the time limit is ended, with words.
- Launchers that kill all ranks within a millisecond when one dies, as MPICH's and Intel's mpirun do, often before a
  surviving rank has noticed. When its rank ends without having dismissed it (a kill, for want of memory for example,
  or a crash of native code), it writes one line with the rank and the exact step to the console.

The launcher then ends the other ranks of the node by the same signal, and their witnesses must not take that for the
cause. So each also watches the processes that the launcher started beside its rank, in one `epoll`, which keeps the
order of their deaths however late it is asked: only who died first has something to tell.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import select
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

_RECORD = struct.Struct("q24s")
_WAITS, _MET, _FAREWELL = b"w", b"m", b"."
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_TOGETHER = 5.0
"""Seconds within which two deaths have to do with each other."""
_writer: int | None = None


def call(name: str, seconds: float, words: str) -> mmap.mmap:
    """Starts the witness of this process, called `name` in its line; returns where to note the progress.

    Args:
        seconds: how long this process may look for the others, from `waits` on; it is then ended with `words`.
    """
    global _writer
    notes = mmap.mmap(-1, _RECORD.size)
    note(notes, 0, "start")
    reader, _writer = _pipe()
    rank = _Rank(os.getpid(), name, notes)
    if os.fork() == 0:
        try:
            os.close(_writer)
            _observe(reader, rank, seconds, words)
        finally:
            os._exit(0)
    os.close(reader)
    return notes


def note(notes: mmap.mmap, step: int, phase: str) -> None:
    _RECORD.pack_into(notes, 0, step, phase.encode()[:24])


def waits() -> None:
    """This process begins to look for the others."""
    _tell(_WAITS)


def has_met() -> None:
    """It has found them."""
    _tell(_MET)


def dismiss() -> None:
    """An orderly end, or one that has been told already: the witness leaves without a word."""
    global _writer
    if _writer is not None:
        _tell(_FAREWELL)
        os.close(_writer)
        _writer = None


def _tell(word: bytes) -> None:
    # The witness may have been killed in the rank's stead; that is no reason to fail.
    with suppress(BrokenPipeError):
        if _writer is not None:
            os.write(_writer, word)


class _Rank:
    """What the witness knows of its rank."""

    def __init__(self, process: int, name: str, notes: mmap.mmap) -> None:
        self.process, self.name, self.notes = process, name, notes

    @property
    def place(self) -> str:
        step, phase = _RECORD.unpack_from(self.notes, 0)
        return f"step {step} ({phase.rstrip(bytes(1)).decode()})"


def _observe(reader: int, rank: _Rank, seconds: float, words: str) -> None:
    siblings = _siblings(rank.process)
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # Above all the launcher's own connection: it must see its rank's end of it close.
    os.dup2(reader, 0)
    os.closerange(3, 1 << 16)
    ended = _listen(siblings, seconds)
    if ended == "late":
        os.write(2, f"DEEPMD ERROR   {words}\n".encode())
        # Never another process that has got its number: an orphan has another parent.
        if os.getppid() == rank.process:
            os.kill(rank.process, signal.SIGKILL)
    elif ended == "first":
        os.write(2, f"DEEPMD ERROR   {rank.name} was killed in {rank.place}\n".encode())


def _listen(siblings: list[int], seconds: float) -> str:
    """Waits for the end of the rank.

    Returns "well" when it has taken its leave, "late" when it must be ended; "first" when it died before those beside
    it, "next" when one of those died just before.
    """
    events = select.epoll()
    events.register(0, select.EPOLLIN)
    for process in siblings:
        with suppress(OSError):
            events.register(os.pidfd_open(process), select.EPOLLIN | select.EPOLLONESHOT)
    deadline, died = math.inf, -math.inf
    while True:
        left = deadline - time.monotonic()
        ready = events.poll(None if left == math.inf else max(0.0, left))
        if not ready:
            return "late"
        if ready[0][0] != 0:
            died = time.monotonic()
        if all(descriptor for descriptor, _ in ready):
            continue
        word = os.read(0, 1)
        if word == _WAITS:
            deadline = time.monotonic() + seconds
        elif word == _MET:
            deadline = math.inf
        elif word == _FAREWELL:
            return "well"
        else:
            return "next" if time.monotonic() - died < _TOGETHER else "first"


def _siblings(process: int) -> list[int]:
    """The processes that the launcher started on this node beside this rank's; each leads a group of processes."""
    try:
        leader = os.getpgid(process)
        launcher = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except (OSError, ValueError, IndexError):
        return []
    return [int(child) for child in children if int(child) != leader]


def _pipe() -> tuple[int, int]:
    """A pipe away from the numbers that have a meaning, which are free where a descriptor was closed by the user."""
    ends = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return reader, writer
