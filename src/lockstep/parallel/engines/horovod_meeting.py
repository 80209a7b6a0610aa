"""Lets Horovod's Gloo controller meet under launchers that are not its own, as horovodrun would have it meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.parallel.addresses import address_towards, interface_towards, own_addresses
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.meeting import open_store

# The ranks' store, and Horovod's server: both are needed as long as the ranks exchange anything.
_kept: list[Any] = []


@dataclass(frozen=True)
class Slot:
    """The place of a rank: among all, on its host, and among those with its place on their hosts."""

    hostname: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def to_response_string(self) -> str:
        """How Horovod's server tells it."""
        places = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, places))

    def variables(self) -> dict[str, str]:
        """How Horovod is told by its launcher."""
        names = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return {f"HOROVOD_{name.upper()}": str(getattr(self, name)) for name in names}


def slots_of(hosts: Sequence[str]) -> list[Slot]:
    """The places of all ranks, from the host of each."""
    found = []
    for rank, host in enumerate(hosts):
        here = [other for other, name in enumerate(hosts) if name == host]
        place = here.index(rank)
        across = [name for name in dict.fromkeys(hosts) if hosts.count(name) > place]
        found.append(Slot(host, rank, len(hosts), place, len(here), across.index(host), len(across)))
    return found


def meet(context: WorkerContext, timeout: float) -> None:
    """Has rank 0 serve as horovodrun does, and puts into the environment what Horovod looks for there."""
    store, host = open_store(context, timeout)
    store.set(f"host {context.rank}", socket.gethostname())
    slots = slots_of([store.get(f"host {rank}").decode() for rank in range(context.size)])
    if context.rank == 0:
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer()
        port = server.start()
        server.init(slots)
        _kept.append(server)
        store.set("horovod", f"{address_towards(host) or own_addresses()[0]}:{port}")
    address, _, number = store.get("horovod").decode().rpartition(":")
    _kept.append(store)
    os.environ.update(slots[context.rank].variables())
    os.environ.update(
        HOROVOD_GLOO_RENDEZVOUS_ADDR=address,
        HOROVOD_GLOO_RENDEZVOUS_PORT=number,
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=interface_towards(host) or "lo",
    )
