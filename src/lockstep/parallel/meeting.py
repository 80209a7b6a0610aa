"""The store where the ranks of a torch group find each other, whichever way the launcher offers."""

from __future__ import annotations

import itertools
import time
import urllib.error
import urllib.request
from datetime import timedelta
from typing import TYPE_CHECKING

from lockstep.errors import UserError
from lockstep.parallel.addresses import address_towards, own_addresses
from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.engines import mpi_world

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore


_meetings = itertools.count()


def open_store(context: WorkerContext, timeout: float) -> tuple[Store, str]:
    """A store shared by all ranks, and the host where it is."""
    from torch.distributed import PrefixStore

    meet = _find(context, timeout)
    is_server = context.rank == 0 and not meet.hosted
    tcp_store = _opened_early.pop(meet, None) or _connect(meet, context, is_server, timeout)
    # A script may train more than once: the keys of an earlier meeting must not be found at a later one.
    store = PrefixStore(f"{meet.prefix}/{next(_meetings)}", tcp_store)
    _await_all(store, context, timeout)
    return store, meet.host


def _await_all(store: Store, context: WorkerContext, timeout: float) -> None:
    """Every rank signs in, so that those who do not come can be named."""
    from torch.distributed import DistError

    keys = [f"rank {rank}" for rank in range(context.size)]
    store.set(keys[context.rank], "here")
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except DistError as problem:
        missing = [rank for rank, key in enumerate(keys) if not _has(store, key)]
        raise UserError(
            f"rank {context.rank} of {context.size} waited {timeout:g} s for ranks {missing}, which did not come",
            where="meeting point",
            value=str(context.meet),
            remedy="check that all ranks were started, and how those have ended",
        ) from problem


def _has(store: Store, key: str) -> bool:
    try:
        return store.check([key])
    except RuntimeError:
        return False


def _connect(meet: Meet, context: WorkerContext, is_server: bool, timeout: float) -> TCPStore:
    from torch.distributed import DistError, TCPStore

    try:
        return TCPStore(
            meet.host,
            meet.port,
            context.size,
            is_server,
            timeout=timedelta(seconds=timeout),
            # The server alone cannot tell who is missing; every rank finds out when it looks for the others.
            wait_for_workers=False,
        )
    except (DistError, RuntimeError, OSError) as problem:
        verb = "open its meeting point" if is_server else "reach rank 0"
        raise UserError(
            f"rank {context.rank} of {context.size} ({context.launcher}) cannot {verb}: {_first_line(problem)}",
            where="meeting point",
            value=str(meet),
            remedy="check the address, that the port is free on rank 0's host (MASTER_PORT or --rdzv_endpoint "
            "chooses another), and that all ranks were started",
        ) from problem


def _find(context: WorkerContext, timeout: float) -> Meet:
    if context.meet.kind == "http":
        return _find_by_http(context, timeout)
    if context.meet.kind == "mpi":
        return _find_by_mpi(context, timeout)
    return context.meet


# Stores that rank 0 had to open before it could tell where they are: their port is known only then.
_opened_early: dict[Meet, TCPStore] = {}


def _open_early(context: WorkerContext, host: str, timeout: float) -> Meet:
    store = _connect(Meet("address", host, 0), context, True, timeout)
    meet = Meet("address", host, store.port)
    _opened_early[meet] = store
    return meet


def _find_by_mpi(context: WorkerContext, timeout: float) -> Meet:
    world = mpi_world.load(context, "torch").COMM_WORLD
    meet = _open_early(context, own_addresses()[0], timeout) if context.rank == 0 else None
    found = world.bcast(meet, root=0)
    assert isinstance(found, Meet)
    return found


def _find_by_http(context: WorkerContext, timeout: float) -> Meet:
    """Rank 0 leaves the address of its store at the launcher's key-value server; the others wait for it."""
    url = f"http://{context.meet.host}:{context.meet.port}/lockstep/store"
    try:
        if context.rank == 0:
            meet = _open_early(context, address_towards(context.meet.host) or own_addresses()[0], timeout)
            request = urllib.request.Request(url, data=str(meet).encode(), method="PUT")
            urllib.request.urlopen(request, timeout=timeout).close()
            return meet
        host, _, port = _get(url, timeout).rpartition(":")
        return Meet("address", host, int(port))
    except (OSError, ValueError) as problem:
        raise UserError(
            f"rank {context.rank} of {context.size} cannot meet the others there: {problem}",
            where="rendezvous of horovodrun",
            value=url,
            remedy="check HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, and that rank 0 was started",
        ) from problem


def _get(url: str, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while True:
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as problem:
            # 404 until rank 0 has left its address.
            if problem.code != 404 or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _first_line(problem: BaseException) -> str:
    return str(problem).splitlines()[0] if str(problem) else type(problem).__name__
