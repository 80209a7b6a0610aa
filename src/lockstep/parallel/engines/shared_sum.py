"""Sums of large tensors among ranks that share their memory, because they run on one node.

Sockets carry every byte through the kernel several times, on cores that have other work to do. Here each rank puts
its tensor where all can read it, adds up its own part of all of them, and takes the whole. The parts are added in order
of rank, so that all ranks get the same bits.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FOLDER = Path("/dev/shm")
SMALLEST = 1 << 16
"""Bytes below which a message is quicker than two barriers."""


class SharedSum:
    """Memory for tensors of one size. A slot for each rank, and one for the sum."""

    def __init__(self, memory: mmap.mmap, like: torch.Tensor, rank: int, size: int) -> None:
        slots = torch.frombuffer(memory, dtype=like.dtype).view(size + 1, like.numel())
        self._own, self._all, self._sum = slots[rank], slots[:size], slots[size]
        part = -(-like.numel() // size)
        self._part = slice(rank * part, min((rank + 1) * part, like.numel()))

    def all_reduce(
        self,
        tensor: torch.Tensor,
        barrier: Callable[[], None],
        between: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        """Replace `tensor` by its sum over the ranks; `between` makes of it, in place, the sum over several nodes."""
        self._own.copy_(tensor.view(-1))
        barrier()
        if self._part.start < self._part.stop:
            torch.sum(self._all[:, self._part], dim=0, out=self._sum[self._part])
        barrier()
        if between is not None:
            between(self._sum)
            barrier()
        # No more barriers: nobody writes to the sum again before all have come to the next first one.
        tensor.view(-1).copy_(self._sum)


def share_memory(like: torch.Tensor, rank: int, size: int, all_gather: Callable[[Any], list[Any]]) -> SharedSum | None:
    """Memory for sums of tensors of this size and kind; None, on all ranks, where they do not share any."""
    nbytes = (size + 1) * like.numel() * like.element_size()
    path: Path | None = FOLDER / f"lockstep-{secrets.token_hex(16)}"
    created = rank == 0 and path is not None and _create(path, nbytes)
    path = all_gather(path if created else None)[0]
    memory = _opened(path, nbytes) if path is not None else None
    everywhere = all(all_gather(memory is not None))
    if created and path is not None:
        # All have it open by now, or will never: whatever happens to the ranks, nothing is left behind.
        path.unlink(missing_ok=True)
    return SharedSum(memory, like, rank, size) if memory is not None and everywhere else None


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
