"""The ranks that train together, whatever carries their messages."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from lockstep.parallel.channel import Channel, NoChannel
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.progress import Progress
from lockstep.parallel.watch import Watch, exit_now

if TYPE_CHECKING:
    import torch

_TIME_FOR_VERDICT = 3.0


class CommunicationError(RuntimeError):
    """An exchange between the ranks broke, and nobody could tell which rank was the cause."""


class Group(ABC):
    """Exchanges that all ranks enter together. Every one of them is watched: see `Watch`.

    Attributes:
        name: what carries the messages, for the log.
        context: the completed context of this rank.
        progress: tell it the step and the phase; messages about a lost rank repeat them.
        channel: the side channel, also used by the log.
    """

    name: str

    def __init__(self, context: WorkerContext, timeout: float) -> None:
        self.context = context
        self.progress = Progress(timeout)
        self.channel: Channel = NoChannel()
        self._watch: Watch | None = None

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def size(self) -> int:
        return self.context.size

    def be_watched(self, context: WorkerContext, watch: Watch) -> None:
        """Completes the group once all ranks are known."""
        self.context, self.channel, self._watch = context, watch.channel, watch

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replaces `tensor` by its sum over the ranks."""
        self._run(self._all_reduce, tensor)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """Replaces `tensor` by that of rank `root`."""
        self._run(self._broadcast, tensor, root)

    def all_gather_object(self, item: Any) -> list[Any]:
        """The items of all ranks, in order of rank. For small things: lists, numbers, strings."""
        return self._run(self._all_gather_object, item)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._run(self._barrier)

    def abort(self, reason: str, code: int = 1) -> NoReturn:
        """Ends this rank now, and all others soon after, without waiting for any of them."""
        if self._watch is not None:
            self._watch.failed(reason)
        exit_now(code)

    def close(self) -> None:
        """The orderly end: all ranks must call it."""
        self.barrier()
        self.channel.close()
        self._close()

    def _run(self, exchange: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with self.progress:
                return exchange(*arguments)
        except Exception as error:
            # The transport notices a dead peer but seldom says which; the watch does, and ends us meanwhile.
            if self._watch is not None:
                time.sleep(_TIME_FOR_VERDICT)
            raise CommunicationError(f"{self.name} exchange failed: {error}") from error

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
