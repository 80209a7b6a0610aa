"""From a context to a group: the ranks meet, check that they are who they should be, and begin to watch."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from lockstep.errors import UserError
from lockstep.parallel import engines
from lockstep.parallel.addresses import addresses_for, network, own_addresses
from lockstep.parallel.context import UNKNOWN, WorkerContext
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group
from lockstep.parallel.watch import witness
from lockstep.parallel.watch.hub import Hub
from lockstep.parallel.watch.identity import Identity
from lockstep.parallel.watch.spoke import Spoke
from lockstep.parallel.watch.watch import Watch
from lockstep.version import __version__

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0
# Ways to wait that have a limit of their own, and better words for it, should come first.
_SLACK = 5.0

Tell = Callable[[UserError], None]


@dataclass(frozen=True)
class Card:
    """How a rank introduces itself to the others.

    Attributes:
        network: what it shares with the ranks that it reaches by the loopback.
        addresses: names and addresses at which other hosts might reach it.
        mistake: what the user did wrong, if this rank cannot begin.
    """

    identity: Identity
    size: int
    launcher: str
    engine: str
    version: str
    device: str
    network: str
    addresses: tuple[str, ...]
    mistake: str


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
    mistake: UserError | None = None,
    tell: Tell = lambda error: log.error("%s", error),
) -> Group:
    """The group of all ranks of this job, met and verified. `device` is "cpu" or "cuda".

    Raises UserError on ranks that cannot form a group of `context.size`; nothing has been written by then.

    Args:
        mistake: why this rank cannot begin. It meets the others all the same, so that all end together and one of
            them says why: every rank then raises a UserError that is `told`.
        tell: says a mistake, on the one rank that has to, before the ranks end.
    """
    try:
        engine = engines.choose(context, device, environ)
    except UserError as error:
        mistake = mistake or error
        engine = engines.choose(context, device, {})
    if context.size == 1:
        if mistake is not None:
            raise mistake
        return SoloGroup(_complete(context, [Identity.own(0)]), timeout)
    if mistake is not None and context.rank == 0:
        tell(mistake)
        mistake.told = True
    # Before MPI and torch start their threads, which a fork does not carry over.
    notes = witness.call(str(Identity.own(context.rank)), timeout + _SLACK, _not_met(context, engine, timeout))
    atexit.register(witness.dismiss)
    connect = engines.load(engine).connect
    with _looking_for_the_others():
        group = connect(context, device, timeout)
        own = _card(context, engine, device, mistake)
        cards: list[Card] = group.all_gather_object(own)
        _refuse_mistakes(group, cards, tell)
        _verify(group, cards, tell)
        _begin_to_watch(group, cards, timeout)
        group.barrier()
    log.info("the ranks exchange through %s", group.name)
    if context.launcher == "hydra":
        group.progress.notes = notes
    else:
        witness.dismiss()
    return group


def _card(context: WorkerContext, engine: str, device: str, mistake: UserError | None) -> Card:
    return Card(
        identity=Identity.own(context.rank),
        size=context.size,
        launcher=context.launcher,
        engine=engine,
        version=__version__,
        device=device,
        network=network(),
        addresses=(socket.gethostname(), *own_addresses()),
        mistake="" if mistake is None else str(mistake),
    )


def _begin_to_watch(group: Group, cards: Sequence[Card], timeout: float) -> None:
    context, ranks = group.context, [card.identity for card in cards]
    hub = Hub(context.size, _doors(context, cards)) if context.rank == 0 else None
    invitation = group.all_gather_object(hub.invitation() if hub else None)[0]
    watch = Watch(group.progress, hub or Spoke(context.rank, invitation, timeout), ranks)
    group.be_watched(_complete(context, ranks), watch)
    watch.start()
    if hub:
        hub.wait_for_all(timeout)


def _doors(context: WorkerContext, cards: Sequence[Card]) -> list[str]:
    """The addresses at which rank 0 listens: no more than the others need."""
    others = {card.network: card.addresses for card in cards if card.network != cards[0].network}
    return addresses_for(context.meet.host, others.values()) if others else ["127.0.0.1"]


def _refuse_mistakes(group: Group, cards: Sequence[Card], tell: Tell) -> None:
    """Where a rank cannot begin, all end; the first that cannot says why."""
    first = next((rank for rank, card in enumerate(cards) if card.mistake), None)
    if first is not None:
        whose = f"rank {first} of {group.size}: " if first else ""
        error = UserError(whose + cards[first].mistake)
        # Rank 0 has not waited for the others to say it.
        error.told = first == 0
        _refuse(group, error, tell, first)


def _refuse(group: Group, error: UserError, tell: Tell, teller: int = 0) -> NoReturn:
    """Ends all ranks for a reason that all of them know; only one says it."""
    if group.rank != teller:
        error.told = True
    elif not error.told:
        tell(error)
        error.told = True
    # Some launchers end all ranks as soon as one of them leaves: that must not be before it has been said.
    group.barrier()
    raise error


def _verify(group: Group, cards: Sequence[Card], tell: Tell) -> None:
    """All ranks see the same cards, so that all of them stop together."""
    ranks, context = [card.identity.rank for card in cards], group.context
    if ranks != list(range(context.size)):
        error = UserError(
            f"{context.launcher} promised {context.size} ranks, but those that met are {ranks}",
            where="group",
            remedy="check how the job was started: some processes carry the same rank",
        )
        _refuse(group, error, tell)
    for name in ("size", "launcher", "engine", "version", "device"):
        values = [getattr(card, name) for card in cards]
        if len(set(values)) > 1:
            error = UserError(
                f"the ranks do not agree on it: {dict(enumerate(values))}",
                where=name,
                remedy="start all ranks by the same command, with the same installation and kind of device",
            )
            _refuse(group, error, tell)


def _complete(context: WorkerContext, ranks: Sequence[Identity]) -> WorkerContext:
    """Fills in what only the ranks together know: the hosts, and who shares one."""
    hosts = [identity.host for identity in ranks]
    here = [rank for rank, host in enumerate(hosts) if host == hosts[context.rank]]
    local_rank, local_size = context.local_rank, context.local_size
    if UNKNOWN in (local_rank, local_size):
        local_rank, local_size = here.index(context.rank), len(here)
    return replace(context, local_rank=local_rank, local_size=local_size, nodes=tuple(dict.fromkeys(hosts)))


def _not_met(context: WorkerContext, engine: str, timeout: float) -> str:
    return (
        f"rank {context.rank} of {context.size} did not meet the others within {timeout:g} s ({context.launcher}, "
        f"{engine}, {context.meet}). This rank ends. Check that all ranks were started, with the same command and "
        f"environment, and how those that are missing have ended"
    )


@contextmanager
def _looking_for_the_others() -> Iterator[None]:
    """A time limit that the witness keeps, and signals that end this process at once.

    While MPI starts, it holds the interpreter's lock: no thread of this process runs, nor does any handler of a signal.
    """
    handled = _signals() if threading.current_thread() is threading.main_thread() else {}
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    witness.waits()
    try:
        yield
    finally:
        witness.has_met()
        for number, handler in handled.items():
            signal.signal(number, handler)


def _signals() -> dict[signal.Signals, Any]:
    """The handlers of the signals that ask to end; without those that are ignored, and have to stay so."""
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
