"""A witness for each rank under launchers that kill all ranks within a millisecond when one dies.

MPICH's and Intel's mpirun do so, often before a surviving rank has noticed, and say at most the process number.
The witness is a tiny fork of the rank, in a session of its own, that sleeps in one `read`. When its rank ends
without having dismissed it (a kill, for want of memory for example, or a crash of native code), it writes one
line with the rank and the exact step to the console, and ends too.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
from contextlib import suppress

_RECORD = struct.Struct("q24s")
_writer: int | None = None


def call(name: str) -> mmap.mmap:
    """Starts the witness of this process, called `name` in its line; returns where to note the progress."""
    global _writer
    notes = mmap.mmap(-1, _RECORD.size)
    note(notes, 0, "start")
    reader, _writer = os.pipe()
    if os.fork() == 0:
        try:
            _observe(reader, notes, name)
        finally:
            os._exit(0)
    os.close(reader)
    return notes


def note(notes: mmap.mmap, step: int, phase: str) -> None:
    _RECORD.pack_into(notes, 0, step, phase.encode()[:24])


def dismiss() -> None:
    """An orderly end, or one that has been told already: the witness leaves without a word."""
    global _writer
    if _writer is not None:
        # The witness may have been killed in the rank's stead; that is no reason to fail.
        with suppress(BrokenPipeError):
            os.write(_writer, b".")
        os.close(_writer)
        _writer = None


def _observe(reader: int, notes: mmap.mmap, name: str) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Above all the launcher's own connection: it must see its rank's end of it close.
    os.dup2(reader, 0)
    os.closerange(3, 1 << 16)
    if os.read(0, 1) == b"":
        step, phase = _RECORD.unpack_from(notes, 0)
        place = f"step {step} ({phase.rstrip(bytes(1)).decode()})"
        os.write(2, f"DEEPMD ERROR   {name} was killed in {place}\n".encode())
