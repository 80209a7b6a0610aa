"""Which ranks of a process group share a node, and sums that go through the memory of each node before the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep.parallel.engines.shared_sum import SharedSum, share_memory

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_node() -> str:
    """What tells this node from others; two hosts may have one name, but never one boot."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename} {boot}"


@dataclass(frozen=True)
class Nodes:
    """The ranks of this node, and the first rank of every node.

    Attributes:
        local: the processes of this node, `size` of them, of which this is number `rank`.
        first: the first processes of all nodes, where there are several and this is one of them.
        several: whether there is more than one node.
    """

    local: Any
    rank: int
    size: int
    first: Any
    several: bool

    @classmethod
    def of(cls, processes: Any, names: Sequence[str], rank: int) -> Nodes | None:
        """From the nodes of all ranks; None where no two of them share one. All ranks must call it."""
        members = [[other for other, name in enumerate(names) if name == one] for one in dict.fromkeys(names)]
        if len(members) == len(names):
            return None
        own = next(ranks for ranks in members if rank in ranks)
        if len(members) == 1:
            return cls(processes, rank, len(names), None, several=False)
        local = _part(processes, own)
        leaders = [ranks[0] for ranks in members]
        first = _part(processes, leaders) if rank in leaders else None
        return cls(local, own.index(rank), len(own), first, several=True)

    def share(self, like: torch.Tensor, all_agree: Callable[[bool], bool]) -> SharedSum | None:
        """Memory for sums of such tensors on this node; None, on all ranks, where some node has none."""
        shared = share_memory(like, self.rank, self.size, self._all_gather)
        return shared if all_agree(shared is not None) else None

    def all_reduce(self, tensor: torch.Tensor, shared: SharedSum) -> None:
        """Replace `tensor` by its sum over all ranks: on each node in its memory, between nodes by one rank of each."""
        shared.all_reduce(tensor, self._barrier, self._between if self.several else None)

    def _between(self, total: torch.Tensor) -> None:
        if self.first is not None:
            dist.all_reduce(total, group=self.first)

    def _barrier(self) -> None:
        if self.size > 1:
            dist.all_reduce(torch.zeros(1), group=self.local)

    def _all_gather(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.local)
        return items


def _part(processes: Any, ranks: Sequence[int]) -> Any:
    """A process group of some ranks of another one; they alone have to call it."""
    everywhere = [dist.get_global_rank(processes, rank) for rank in ranks]
    return dist.new_group(everywhere, backend="gloo", use_local_synchronization=True)
