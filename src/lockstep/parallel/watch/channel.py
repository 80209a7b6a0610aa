"""A side channel between the ranks: one TCP connection from every rank to rank 0, JSON lines.

It carries what must not wait for the training's own exchanges: signs of life, the news that a rank failed, and
log records. Each rank serves it in one thread, which sleeps nearly all the time. A process that dies closes its
connection, whatever kills it, so rank 0 (`Hub`) knows of it at once, and every rank (`Spoke`) knows of the death of
rank 0.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from lockstep.parallel.watch.line import NOBODY, ForeignError, Line, encode

Receive = Callable[[int, dict[str, Any]], None]
HELLO, WELCOME, BYE = "hello", "welcome", "bye"
_TICK = 0.25


class Channel(ABC):
    """The thread and the connections of one rank; `Hub` on rank 0, `Spoke` elsewhere."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._receivers: dict[str, Receive] = {}
        self._lost: Callable[[int], None] = lambda rank: None
        self._tick: Callable[[], None] = lambda: None
        self._signalled: Callable[[int], None] = lambda number: None
        self._outbox: deque[tuple[int | None, bytes]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="lockstep side channel", daemon=True)

    @property
    def wake_fd(self) -> int:
        """For signal.set_wakeup_fd: a signal wakes this thread even while the main thread sits in an exchange."""
        return self._wake_writer.fileno()

    def start(
        self,
        lost: Callable[[int], None],
        tick: Callable[[], None],
        signalled: Callable[[int], None],
    ) -> None:
        """Begins to serve. All callbacks are called in the channel's thread."""
        self._lost, self._tick, self._signalled = lost, tick, signalled
        self._thread.start()

    def on(self, topic: str, receive: Receive) -> None:
        """`receive(sender, message)` is called for every message on `topic`."""
        self._receivers[topic] = receive

    def send(self, topic: str, message: dict[str, Any], to: int | None = None) -> None:
        """Queues a message and returns at once: from rank 0 to one or to all, from elsewhere to rank 0."""
        self._outbox.append((to, encode(topic, message)))
        self._wake()

    def flush(self, seconds: float) -> None:
        """Gives queued messages up to `seconds` to leave."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self._outbox or any(line.to_send for line in self._lines())):
            if threading.current_thread() is self._thread:
                self._deliver()
            else:
                self._wake()
            time.sleep(0.005)

    def close(self) -> None:
        """Says goodbye, so that the end of the connection is not taken for a death."""
        self.send(BYE, {})
        self.flush(1.0)
        self._closing.set()
        self._wake()
        self._thread.join(2.0)
        for line in self._lines():
            line.connection.close()

    @abstractmethod
    def _lines(self) -> list[Line]: ...

    @abstractmethod
    def _dispatch(self, line: Line, topic: str, message: dict[str, Any]) -> None: ...

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_writer.send(b"\0")

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(_TICK):
                self._handle(key)
            self._deliver()
            self._tick()

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            for number in filter(None, self._wake_reader.recv(4096)):
                self._signalled(number)
            return
        try:
            for topic, message in key.data.read():
                self._dispatch(key.data, topic, message)
        except (OSError, ForeignError):
            self._drop(key.data)

    def _drop(self, line: Line) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.connection)
        line.connection.close()
        line.to_send.clear()
        peer, line.peer = line.peer, NOBODY
        if peer != NOBODY and not line.said_bye and not self._closing.is_set():
            self._lost(peer)

    def _deliver(self) -> None:
        while self._outbox:
            to, text = self._outbox.popleft()
            for line in self._lines():
                if line.peer != NOBODY and to in (None, line.peer):
                    line.to_send += text
        for line in self._lines():
            try:
                line.write()
            except OSError:
                self._drop(line)


class NoChannel(Channel):
    """A single process has nobody to talk to; its signals still need a thread that hears them."""

    def __init__(self) -> None:
        super().__init__(0)

    def send(self, topic: str, message: dict[str, Any], to: int | None = None) -> None:
        pass

    def close(self) -> None:
        self._wake_reader.close()
        self._wake_writer.close()

    def _lines(self) -> list[Line]:
        return []

    def _dispatch(self, line: Line, topic: str, message: dict[str, Any]) -> None:
        raise AssertionError("nobody can write here")
