"""How much memory a process keeps for itself, and how much it may use for remembering."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next step.

    By default it returns large blocks to the system at once, and a step of a megabyte-sized network spends a tenth
    of its time having the same pages zeroed and mapped again.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_M_TOP_PAD, 64 << 20)


def free_memory() -> int:
    """Bytes of memory that nobody uses at the moment."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
