"""Rank 0's end of the side channel: listens until every rank has called, and keeps one line for each."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UserError
from lockstep.parallel.watch.channel import BYE, HELLO, WELCOME, Channel
from lockstep.parallel.watch.line import NOBODY, ForeignError, Line, encode

_TIME_TO_GREET = 10.0
_LONGEST_GREETING = 1000
_MOST_STRANGERS = 32


@dataclass(frozen=True)
class Invitation:
    """What rank 0 tells the others, so that they can call it; the secret keeps strangers out.

    Attributes:
        doors: addresses and ports at which rank 0 listens.
    """

    doors: tuple[tuple[str, int], ...]
    secret: str


class Hub(Channel):
    """Listens at `addresses` and nowhere else, and no longer than until all ranks have called.

    Whoever calls is a stranger until it has greeted with the secret. Strangers may send anything; those that send
    something else, or nothing for a while, are shown the door, and so are the oldest where there are too many.
    """

    def __init__(self, size: int, addresses: Sequence[str] = ("127.0.0.1",)) -> None:
        super().__init__(0)
        self._size = size
        self._secret = secrets.token_hex(16)
        self._connected: list[Line] = []
        self._strangers: list[Line] = []
        self._all_here = threading.Event()
        self._listeners = [socket.create_server((address, 0), backlog=max(size, 16)) for address in addresses]
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def invitation(self) -> Invitation:
        return Invitation(tuple(listener.getsockname()[:2] for listener in self._listeners), self._secret)

    def wait_for_all(self, seconds: float) -> None:
        if self._size > 1 and not self._all_here.wait(seconds):
            here = {line.peer for line in self._lines()}
            missing = [rank for rank in range(1, self._size) if rank not in here]
            raise UserError(
                f"ranks {missing} did not call rank 0 within {seconds:g} s",
                where="side channel",
                remedy="check that the nodes can open TCP connections to each other",
            )

    def close(self) -> None:
        # A line's goodbye is its last message: once all have said it, no log record is still on its way.
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and any(x.peer != NOBODY and not x.said_bye for x in self._lines()):
            time.sleep(0.002)
        super().close()
        self._stop_listening()

    def _lines(self) -> list[Line]:
        return list(self._connected)

    def _serve(self) -> None:
        super()._serve()
        for line in [*self._strangers]:
            self._drop(line)

    def _handle(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, socket.socket):
            self._accept(key.data)
        else:
            super()._handle(key)

    def _deliver(self) -> None:
        now = time.monotonic()
        for line in [line for line in self._strangers if now - line.since > _TIME_TO_GREET]:
            self._drop(line)
        super()._deliver()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        line = Line(connection, limit=_LONGEST_GREETING)
        self._strangers.append(line)
        self._selector.register(connection, selectors.EVENT_READ, line)
        if len(self._strangers) > _MOST_STRANGERS + self._size:
            self._drop(self._strangers[0])

    def _drop(self, line: Line) -> None:
        if line in self._strangers:
            self._strangers.remove(line)
        super()._drop(line)

    def _dispatch(self, line: Line, topic: str, message: dict[str, Any]) -> None:
        if line.peer == NOBODY:
            self._welcome(line, topic, message)
        elif topic == BYE:
            line.said_bye = True
        elif topic in self._receivers:
            self._receivers[topic](line.peer, message)

    def _welcome(self, line: Line, topic: str, message: dict[str, Any]) -> None:
        secret, rank = message.get("secret"), message.get("rank")
        if topic != HELLO or not isinstance(secret, str) or not isinstance(rank, int):
            raise ForeignError("no greeting")
        if not secrets.compare_digest(secret.encode(errors="replace"), self._secret.encode()):
            raise ForeignError("wrong secret")
        if not 0 < rank < self._size or any(other.peer == rank for other in self._connected):
            raise ForeignError("a rank that there is not, or that is here already")
        line.peer, line.limit = rank, Line.limit
        self._strangers.remove(line)
        # Straight onto this line: messages to all that already wait in the outbox must come after it.
        line.to_send += encode(WELCOME, {})
        self._connected.append(line)
        if len(self._connected) == self._size - 1:
            self._all_here.set()
            self._stop_listening()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(listener)
            listener.close()
