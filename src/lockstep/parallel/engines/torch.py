"""A group over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lockstep.device import transport
from lockstep.errors import UserError
from lockstep.parallel.addresses import interface_towards
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines import mpi_world
from lockstep.parallel.engines.nodes import Nodes, this_node
from lockstep.parallel.engines.shared_sum import SMALLEST, SharedSum, Turnstile
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group
from lockstep.parallel.meeting import open_store

# The watch ends a rank that waits too long; the transport's own limit only stands behind it.
_BACKSTOP = timedelta(hours=24)


def usable(context: WorkerContext, device: str, environ: Mapping[str, str]) -> bool:
    return True


def connect(context: WorkerContext, device: str, timeout: float) -> Group:
    name, backend = transport(device)
    store, host = open_store(context, timeout)
    _use_interface_towards(host)
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=context.rank,
            world_size=context.size,
            timeout=_BACKSTOP,
        )
    except (RuntimeError, ValueError) as problem:
        raise UserError(
            f"rank {context.rank} cannot form a group of {context.size}: {problem}",
            where=name,
            remedy="check that all ranks were started and that the nodes can reach each other; "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses the network interface",
        ) from problem
    return TorchGroup(context, timeout, name, dist.group.WORLD)


class TorchGroup(Group):
    """Exchanges through a process group of torch.distributed."""

    def __init__(self, context: WorkerContext, timeout: float, name: str, processes: Any) -> None:
        super().__init__(context, timeout)
        self.name, self._processes = name, processes
        self._shared: dict[tuple[int, torch.dtype], SharedSum | None] = {}
        self._known_nodes: list[Nodes | None] = []
        self._rooms: dict[torch.dtype, torch.Tensor] = {}

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "cpu" and tensor.nbytes < SMALLEST and Turnstile.usable:
            self._sum_small(tensor)
        else:
            self._sum(tensor, several=True)

    def _sum(self, tensor: torch.Tensor, several: bool) -> bool:
        """Sum in memory where ranks share any, by messages elsewhere; where these are of `several` nodes, if asked."""
        nodes, shared = self._nodes_for(tensor), None
        if nodes is not None and (several or not nodes.several):
            shared = self._shared_sum(tensor, nodes)
        if nodes is not None and shared is not None:
            nodes.all_reduce(tensor, shared)
        elif several:
            dist.all_reduce(tensor, group=self._processes)
        return shared is not None

    def _sum_small(self, tensor: torch.Tensor) -> None:
        """In memory too, if all ranks are on one node: in room that fits all small ones, so that it is made once."""
        room = self._rooms.get(tensor.dtype)
        if room is None:
            room = torch.zeros(SMALLEST // tensor.dtype.itemsize, dtype=tensor.dtype)
            self._rooms[tensor.dtype] = room
        part = room[: tensor.numel()].view(tensor.shape)
        part.copy_(tensor)
        if self._sum(room, several=False):
            tensor.copy_(part)
        else:
            dist.all_reduce(tensor, group=self._processes)

    def _nodes_for(self, tensor: torch.Tensor) -> Nodes | None:
        """By which nodes large tensors of the CPU are summed; None where no two ranks share one."""
        if tensor.device.type != "cpu" or tensor.nbytes < SMALLEST:
            return None
        if not self._known_nodes:
            names = self._all_gather_object(this_node())
            self._known_nodes.append(Nodes.of(self._processes, names, self.rank))
        return self._known_nodes[0]

    def _shared_sum(self, tensor: torch.Tensor, nodes: Nodes) -> SharedSum | None:
        """The memory in which they are summed; the first tensor of its size makes it."""
        kind = (tensor.numel(), tensor.dtype)
        if kind not in self._shared:
            self._shared[kind] = nodes.share(tensor, lambda one: all(self._all_gather_object(one)))
        return self._shared[kind]

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        dist.broadcast(tensor, group=self._processes, group_src=root)

    def _all_gather_object(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self._processes)
        return items

    def _barrier(self) -> None:
        dist.all_reduce(torch.zeros(1), group=self._processes)

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        everywhere = [dist.get_global_rank(self._processes, rank) for rank in range(self.size)]
        own: Any = None
        # Every rank takes part in making every part.
        for ranks in members:
            made = dist.new_group([everywhere[rank] for rank in ranks], timeout=_BACKSTOP)
            own = made if self.rank in ranks else own
        if context.size == 1:
            return SoloGroup(context, self.progress.timeout)
        return TorchGroup(context, self.progress.timeout, self.name, own)

    def _close(self) -> None:
        dist.destroy_process_group()
        mpi_world.finalize_at_exit()


def _use_interface_towards(host: str) -> None:
    """Lets gloo use the interface that reaches the meeting point.

    By itself it takes the one the host's own name resolves to, which on many systems is the loopback: fine on
    one node, useless between two.
    """
    name = interface_towards(host)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
