"""From a context to a group: the ranks meet, check that they are who they should be, and begin to watch."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from lockstep import __version__
from lockstep.errors import UserError
from lockstep.parallel.context import UNKNOWN, WorkerContext
from lockstep.parallel.engines import mpi_world
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group
from lockstep.parallel.watch import witness
from lockstep.parallel.watch.channel import Hub, Invitation, Spoke
from lockstep.parallel.watch.watch import EXIT_LOST, Identity, Watch, exit_now

log = logging.getLogger("lockstep.parallel")

DEFAULT_TIMEOUT = 60.0
# Ways to wait that have a limit of their own, and better words for it, should come first.
_SLACK = 5.0
_MPI_LAUNCHERS = ("hydra", "openmpi")
_CHOICES = ("auto", "mpi", "torch")


@dataclass(frozen=True)
class Card:
    """How a rank introduces itself to the others."""

    identity: Identity
    size: int
    launcher: str
    version: str
    device: str
    invitation: Invitation | None


def timeout_of(environ: Mapping[str, str], default: float = DEFAULT_TIMEOUT) -> float:
    """LOCKSTEP_TIMEOUT: how many seconds a rank may wait for the others, in one exchange or to meet them."""
    text = environ.get("LOCKSTEP_TIMEOUT", "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        raise UserError(
            "expected a number of seconds between 0 and 86400",
            where="environment variable LOCKSTEP_TIMEOUT",
            value=text,
        )
    return seconds


def open_group(
    context: WorkerContext,
    device: str = "cpu",
    timeout: float = DEFAULT_TIMEOUT,
    environ: Mapping[str, str] = os.environ,
) -> Group:
    """The group of all ranks of this job, met and verified. `device` is "cpu" or "cuda".

    Raises UserError on ranks that cannot form a group of `context.size`; nothing has been written by then.
    """
    if context.size == 1:
        return SoloGroup(_complete(context, [Identity.own(0)]), timeout)
    # Before MPI and torch start their threads, which a fork does not carry over.
    notes = witness.call(str(Identity.own(context.rank))) if context.launcher == "hydra" else None
    atexit.register(witness.dismiss)
    connect = _choose(context, device, timeout, environ)
    with _Deadline(context, timeout):
        group = connect()
        group.progress.notes = notes
        hub = Hub(context.size) if context.rank == 0 else None
        invitation = hub.invitation() if hub else None
        identity = Identity.own(context.rank)
        card = Card(identity, context.size, context.launcher, __version__, device, invitation)
        cards: list[Card] = group.all_gather_object(card)
        _verify(context, cards)
        ranks = [card.identity for card in cards]
        channel = hub or _spoke(context, cards, timeout)
        watch = Watch(group.progress, channel, ranks)
        group.be_watched(_complete(context, ranks), watch)
        watch.start()
        if hub:
            hub.wait_for_all(timeout)
        group.barrier()
    return group


def _choose(context: WorkerContext, device: str, timeout: float, environ: Mapping[str, str]) -> Callable[[], Group]:
    """What will carry the messages. Loading it may take seconds, which is not time spent waiting for others."""
    choice = environ.get("LOCKSTEP_GROUP", "auto")
    if choice not in _CHOICES:
        raise UserError(
            f"expected one of {', '.join(_CHOICES)}", where="environment variable LOCKSTEP_GROUP", value=choice
        )
    by_mpi = context.launcher in _MPI_LAUNCHERS and device == "cpu" and mpi_world.is_installed()
    if choice == "mpi" or (choice == "auto" and by_mpi):
        from lockstep.parallel.engines.mpi import MpiGroup

        return partial(MpiGroup, context, timeout)
    from lockstep.parallel.engines.torch import TorchGroup

    return partial(TorchGroup, context, device, timeout)


def _spoke(context: WorkerContext, cards: Sequence[Card], timeout: float) -> Spoke:
    hub = cards[0]
    assert hub.invitation is not None
    same_node = cards[context.rank].identity.namespace == hub.identity.namespace
    return Spoke(context.rank, hub.invitation, same_node, timeout)


def _verify(context: WorkerContext, cards: Sequence[Card]) -> None:
    """All ranks see the same cards, so that all of them stop together."""
    ranks = [card.identity.rank for card in cards]
    if ranks != list(range(context.size)):
        raise UserError(
            f"{context.launcher} promised {context.size} ranks, but those that met are {ranks}",
            where="group",
            remedy="check how the job was started: some processes carry the same rank",
        )
    for name in ("size", "launcher", "version", "device"):
        values = [getattr(card, name) for card in cards]
        if len(set(values)) > 1:
            raise UserError(
                f"the ranks do not agree on it: {dict(enumerate(values))}",
                where=name,
                remedy="start all ranks by the same command, with the same installation and kind of device",
            )


def _complete(context: WorkerContext, ranks: Sequence[Identity]) -> WorkerContext:
    """Fills in what only the ranks together know: the hosts, and who shares one."""
    hosts = [identity.host for identity in ranks]
    here = [rank for rank, host in enumerate(hosts) if host == hosts[context.rank]]
    local_rank, local_size = context.local_rank, context.local_size
    if UNKNOWN in (local_rank, local_size):
        local_rank, local_size = here.index(context.rank), len(here)
    return replace(context, local_rank=local_rank, local_size=local_size, nodes=tuple(dict.fromkeys(hosts)))


class _Deadline:
    """Ends a rank that is still looking for the others after the timeout: some ways to wait have no limit."""

    def __init__(self, context: WorkerContext, timeout: float) -> None:
        self._context, self._timeout = context, timeout
        self._timer = threading.Timer(timeout + _SLACK, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        log.error(
            "rank %d of %d did not meet the others within %g s at %s (%s). This rank ends.",
            self._context.rank,
            self._context.size,
            self._timeout,
            self._context.meet,
            self._context.launcher,
        )
        exit_now(EXIT_LOST)
