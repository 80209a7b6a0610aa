"""The ranks that train together, whatever carries their messages."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.watch import witness
from lockstep.parallel.watch.channel import Channel, NoChannel
from lockstep.parallel.watch.ending import exit_now
from lockstep.parallel.watch.progress import WORLD, Progress
from lockstep.parallel.watch.watch import Watch
from lockstep.phases import WAIT, Phases

if TYPE_CHECKING:
    import torch

_TIME_FOR_VERDICT = 3.0


class CommunicationError(RuntimeError):
    """An exchange between the ranks broke, and nobody could tell which rank was the cause."""


class Meter(Protocol):
    """Somebody who takes note of every exchange."""

    def count(self, routine: str, payload: Any, began: float, waited: float, ended: float) -> None:
        """An exchange of `payload` is over; of its time (by `time.perf_counter`) the first `waited` s were waiting."""


class Group(ABC):
    """Exchanges that all ranks enter together. Every one of them is watched: see `Watch`.

    Waiting for ranks that come late is told apart from the exchange itself. The ranks leave an exchange nearly at the
    same time; so each puts the time since the last one into the message, and the largest tells when the last one came.

    Attributes:
        name: what carries the messages, for the log.
        context: the completed context of this rank.
        world: the group of all ranks, of which this one is a part; itself, where this is all.
        progress: tell it the step and the phase; messages about a lost rank repeat them.
        channel: the side channel, also used by the log.
        meters: who takes note of the exchanges. Where there are any, a barrier before each exchange that carries no
            times tells waiting apart there too; all ranks must have some, or none.
    """

    name: str

    def __init__(self, context: WorkerContext, timeout: float) -> None:
        self.context = context
        self.progress = Progress(timeout)
        self.channel: Channel = NoChannel()
        self.world: Group = self
        self.meters: tuple[Meter, ...] = ()
        self._watch: Watch | None = None
        self._exchanges = self.progress.sequence(WORLD)
        self._splits = 0
        self._left = time.perf_counter()
        self._wait = 0.0

    @property
    def phases(self) -> Phases:
        """The clock of what this rank does."""
        return self.progress.phases

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def size(self) -> int:
        return self.context.size

    def be_watched(self, context: WorkerContext, watch: Watch) -> None:
        """Completes the group once all ranks are known."""
        self.context, self.channel, self._watch = context, watch.channel, watch

    def split(self, colour: int) -> Group:
        """The ranks that gave the same colour as this one, as a group of their own, in the order that they have here.

        All ranks must call it. The part shares progress, channel and watch with the whole.
        """
        colours = self.all_gather_object(colour)
        members = [[rank for rank, other in enumerate(colours) if other == one] for one in sorted(set(colours))]
        own = next(ranks for ranks in members if self.rank in ranks)
        context = replace(self.context, rank=own.index(self.rank), size=len(own))
        part: Group = self._run("MPI_Comm_split", None, self._split, context, members)
        self._splits += 1
        part.belong_to(self, f"{self._exchanges.name}.{self._splits}.{colour}")
        return part

    def belong_to(self, whole: Group, name: str) -> None:
        """Makes this group a part of another one: what it does is watched, timed and told as the whole's."""
        self.progress, self.channel, self._watch, self.world = whole.progress, whole.channel, whole._watch, whole.world
        self._exchanges = self.progress.sequence(name)

    def all_reduce(self, tensor: torch.Tensor, arrivals: torch.Tensor | None = None) -> None:
        """Replaces `tensor` by its sum over the ranks.

        `arrivals` may be a part of it with one number for each rank: the group then uses it to tell waiting apart.
        """
        if arrivals is None:
            self._run("MPI_Allreduce", tensor, self._after_barrier, self._all_reduce, tensor)
        else:
            self._run("MPI_Allreduce", tensor, self._stamped_all_reduce, tensor, arrivals)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sums of a few numbers over the ranks, with waiting told apart."""
        message = values.new_zeros(values.numel() + self.size)
        message[: -self.size] = values
        self.all_reduce(message, message[-self.size :])
        return message[: -self.size]

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Replaces `tensor` by that of rank `root`."""
        self._run("MPI_Bcast", tensor, self._after_barrier, self._broadcast, tensor, root)

    def all_gather_object(self, item: Any) -> list[Any]:
        """The items of all ranks, in order of rank. For small things: lists, numbers, strings."""
        return self._run("MPI_Allgather", item, self._stamped_all_gather, item)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._run("MPI_Barrier", None, self._waiting_barrier)

    def in_memory(self, routine: str, payload: Any, meet: Callable[[], None], work: Callable[[], Any]) -> Any:
        """An exchange through memory that the ranks share: all `meet`, and then each does its `work`."""
        return self._run(routine, payload, self._after_meeting, meet, work)

    def abort(self, reason: str, code: int = 1) -> NoReturn:
        """Ends this rank now, and all others soon after, without waiting for any of them."""
        if self._watch is not None:
            self._watch.failed(reason)
        exit_now(code)

    def give_up(self, reason: str, code: int) -> None:
        """Has rank 0 say why this rank cannot go on, and end all. Returns only if rank 0 could not."""
        if self._watch is not None:
            self._watch.mistaken(reason, code)
            time.sleep(_TIME_FOR_VERDICT)

    def close(self) -> None:
        """The orderly end: all ranks must call it."""
        self.barrier()
        self.channel.close()
        witness.dismiss()
        self._close()

    def _run(self, routine: str, payload: Any, exchange: Callable[..., Any], *arguments: Any) -> Any:
        self._wait = 0.0
        try:
            with self._exchanges:
                began = self.phases.since
                result = exchange(*arguments)
        except Exception as error:
            # The transport notices a dead peer but seldom says which; the watch does, and ends us meanwhile.
            if self._watch is not None:
                time.sleep(_TIME_FOR_VERDICT)
            raise CommunicationError(f"{self.name} exchange failed: {error}") from error
        self._left = self.phases.since
        for meter in self.world.meters:
            meter.count(routine, payload, began, self._wait, self._left)
        return result

    def _stamped_all_reduce(self, tensor: torch.Tensor, arrivals: torch.Tensor) -> None:
        if not self.phases.on_time:
            # To know when its device comes here this rank would have to wait for it.
            self._all_reduce(tensor)
            return
        own = time.perf_counter() - self._left
        arrivals.zero_()
        arrivals[self.rank] = own
        self._all_reduce(tensor)
        self._waited(float(arrivals.max()) - own)

    def _stamped_all_gather(self, item: Any) -> list[Any]:
        own = time.perf_counter() - self._left
        pairs = self._all_gather_object((own, item))
        self._waited(max(elapsed for elapsed, _ in pairs) - own)
        return [item for _, item in pairs]

    def _after_barrier(self, exchange: Callable[..., Any], *arguments: Any) -> Any:
        if self.world.meters:
            self._waiting_barrier()
        return exchange(*arguments)

    def _waiting_barrier(self) -> None:
        self._barrier()
        self._waited(math.inf)

    def _after_meeting(self, meet: Callable[[], None], work: Callable[[], Any]) -> Any:
        meet()
        self._waited(math.inf)
        return work()

    def _waited(self, seconds: float) -> None:
        self._wait = self.phases.set_apart(WAIT, seconds)

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor) -> None: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, root: int) -> None: ...

    @abstractmethod
    def _all_gather_object(self, item: Any) -> list[Any]: ...

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        """This rank's part of a division into `members`, ranks of this group; `context` is this rank's there."""
        raise NotImplementedError(f"{self.name} cannot be split")
