"""Sums of large tensors among ranks that share their memory, because they run on one node.

Sockets carry every byte through the kernel several times, on cores that have other work to do. Here each rank puts
its tensor where all can read it, adds up its own part of all of them, and takes the whole. The parts are added in order
of rank, so that all ranks get the same bits.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FOLDER = Path("/dev/shm")
SMALLEST = 1 << 16
"""Bytes below which a message is quicker than two barriers."""
LINE = 64
"""Bytes that cores hand to each other at a time."""
_AT_ONCE, _PAUSE = 1e-3, 5e-5
"""Seconds for which a rank looks for the others without a pause, and between two looks from then on."""


class SharedSum:
    """Memory for tensors of one size: a slot for each rank, one for the sum, and where ranks say how far they are."""

    def __init__(self, memory: mmap.mmap, like: torch.Tensor, rank: int, size: int) -> None:
        slots = torch.frombuffer(memory, dtype=like.dtype, count=(size + 1) * like.numel()).view(size + 1, like.numel())
        self._own, self._all, self._sum = slots[rank], slots[:size], slots[size]
        part = -(-like.numel() // size)
        self._part = slice(rank * part, min((rank + 1) * part, like.numel()))
        self._turnstile = Turnstile(memory, len(memory) - size * LINE, rank, size)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        barrier: Callable[[], None],
        between: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Replace `tensor` by its sum over the ranks; `between` makes of it, in place, the sum over several nodes."""
        meet = self._turnstile.pass_through if Turnstile.usable else barrier
        self._own.copy_(tensor.view(-1))
        meet()
        if self._part.start < self._part.stop:
            self._add_up(self._all[:, self._part], self._sum[self._part])
        meet()
        if between is not None:
            between(self._sum)
            meet()
        # Nobody writes to the sum again before all have come to the next first meeting.
        tensor.view(-1).copy_(self._sum)

    @staticmethod
    def _add_up(parts: torch.Tensor, out: torch.Tensor) -> None:
        first, *others = parts.unbind()
        out.copy_(first)
        for other in others:
            out.add_(other)


class Turnstile:
    """Ranks that wait for each other by looking into memory that they share: a barrier without a message.

    A barrier over sockets takes a tenth of a millisecond where nothing else runs, and many times as long where the
    thread that carries it has to wait for a core that computes.

    Attributes:
        usable: whether what a rank writes is seen in the order in which it was written, by this kind of processor.
    """

    usable = platform.machine() in ("x86_64", "AMD64")

    def __init__(self, memory: mmap.mmap, start: int, rank: int, size: int) -> None:
        words = LINE // torch.int64.itemsize
        turns = torch.frombuffer(memory, dtype=torch.int64, offset=start, count=size * words)
        self._turns, self._rank, self._turn = turns.view(size, words)[:, 0].numpy(), rank, 0

    def pass_through(self) -> None:
        """Wait until all ranks have come as often as this one."""
        self._turn += 1
        self._turns[self._rank] = self._turn
        began = time.perf_counter()
        while self._turns.min() < self._turn:
            # Where ranks share a core, the one that is waited for may need this one's.
            os.sched_yield() if time.perf_counter() - began < _AT_ONCE else time.sleep(_PAUSE)


def share_memory(like: torch.Tensor, rank: int, size: int, all_gather: Callable[[Any], list[Any]]) -> SharedSum | None:
    """Memory for sums of tensors of this size and kind; None, on all ranks, where they do not share any."""
    slots = (size + 1) * like.numel() * like.element_size()
    memory = open_shared(-(-slots // LINE) * LINE + size * LINE, rank, all_gather)
    return None if memory is None else SharedSum(memory, like, rank, size)


def open_shared(nbytes: int, rank: int, all_gather: Callable[[Any], list[Any]]) -> mmap.mmap | None:
    """Memory that all ranks see, full of zeros; None, on all of them, where one cannot have it. All must call it."""
    path: Path | None = FOLDER / f"lockstep-{secrets.token_hex(16)}"
    created = rank == 0 and path is not None and _create(path, nbytes)
    path = all_gather(path if created else None)[0]
    memory = _opened(path, nbytes) if path is not None else None
    everywhere = all(all_gather(memory is not None))
    if created and path is not None:
        # All have it open by now, or will never: whatever happens to the ranks, nothing is left behind.
        path.unlink(missing_ok=True)
    return memory if everywhere else None


def _create(path: Path, nbytes: int) -> bool:
    """Reserve the memory; often, in a container, there is little of it."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
    return True


def _opened(path: Path, nbytes: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, nbytes)
    except OSError:
        return None
    finally:
        os.close(descriptor)
