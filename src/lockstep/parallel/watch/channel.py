"""A side channel between the ranks: one TCP connection from every rank to rank 0, JSON lines.

It carries what must not wait for the training's own exchanges: signs of life, the news that a rank failed, and
log records. Each rank serves it in one thread, which sleeps nearly all the time. A process that dies closes its
connection, whatever kills it, so rank 0 knows of it at once, and every rank knows of the death of rank 0.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep.errors import UserError
from lockstep.parallel.addresses import own_addresses

Receive = Callable[[int, dict[str, Any]], None]
_TICK = 0.25
_HELLO, _WELCOME, _BYE = "hello", "welcome", "bye"


@dataclass(frozen=True)
class Invitation:
    """What rank 0 tells the others, so that they can call it; the secret keeps strangers out."""

    addresses: tuple[str, ...]
    port: int
    secret: str


@dataclass
class _Line:
    """One connection, with the bytes of a message that has not arrived, or not left, as a whole."""

    connection: socket.socket
    peer: int = -1
    said_bye: bool = False
    received: bytes = b""
    to_send: bytearray = field(default_factory=bytearray)

    def read(self) -> list[bytes]:
        """Whole lines that have arrived. ConnectionError when the peer is gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed by the peer")
        *lines, self.received = (self.received + data).split(b"\n")
        return lines

    def write(self) -> None:
        """Sends what the connection takes without waiting: a stopped peer must not stop us."""
        with contextlib.suppress(BlockingIOError):
            while self.to_send:
                del self.to_send[: self.connection.send(self.to_send)]


def _encode(topic: str, message: dict[str, Any]) -> bytes:
    return json.dumps({"topic": topic, **message}, default=str).encode() + b"\n"


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
        self._outbox.append((to, _encode(topic, message)))
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
        self.send(_BYE, {})
        self.flush(1.0)
        self._closing.set()
        self._wake()
        self._thread.join(2.0)
        for line in self._lines():
            line.connection.close()

    @abstractmethod
    def _lines(self) -> list[_Line]: ...

    @abstractmethod
    def _dispatch(self, line: _Line, topic: str, message: dict[str, Any]) -> None: ...

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
            for text in key.data.read():
                message = json.loads(text)
                self._dispatch(key.data, message.pop("topic"), message)
        except (ConnectionError, TimeoutError):
            self._drop(key.data)
        except (ValueError, AttributeError, KeyError):
            # Whoever does not speak our language is not one of our ranks.
            self._drop(key.data)

    def _drop(self, line: _Line) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.connection)
        line.connection.close()
        line.to_send.clear()
        peer, line.peer = line.peer, -1
        if peer >= 0 and not line.said_bye and not self._closing.is_set():
            self._lost(peer)

    def _deliver(self) -> None:
        while self._outbox:
            to, text = self._outbox.popleft()
            for line in self._lines():
                if line.peer >= 0 and to in (None, line.peer):
                    line.to_send += text
        for line in self._lines():
            try:
                line.write()
            except OSError:
                self._drop(line)


class Hub(Channel):
    """Rank 0's end: listens, and keeps one line for every other rank."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        self._size = size
        self._secret = secrets.token_hex(16)
        self._connected: list[_Line] = []
        self._all_here = threading.Event()
        self._listener = socket.create_server(("", 0), backlog=max(size, 16))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self)

    def invitation(self) -> Invitation:
        return Invitation(tuple(own_addresses()), self._listener.getsockname()[1], self._secret)

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
        while time.monotonic() < deadline and any(x.peer >= 0 and not x.said_bye for x in self._lines()):
            time.sleep(0.002)
        super().close()
        self._listener.close()

    def _lines(self) -> list[_Line]:
        return list(self._connected)

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.data is not self:
            super()._handle(key)
            return
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, _Line(connection))

    def _dispatch(self, line: _Line, topic: str, message: dict[str, Any]) -> None:
        if topic == _HELLO:
            if not secrets.compare_digest(str(message["secret"]), self._secret):
                raise ValueError("wrong secret")
            line.peer = int(message["rank"])
            # Straight onto this line: messages to all that already wait in the outbox must come after it.
            line.to_send += _encode(_WELCOME, {})
            self._connected.append(line)
            if len(self._connected) == self._size - 1:
                self._all_here.set()
        elif line.peer < 0:
            raise ValueError("a message before the greeting")
        elif topic == _BYE:
            line.said_bye = True
        elif topic in self._receivers:
            self._receivers[topic](line.peer, message)


class Spoke(Channel):
    """Every other rank's end: one line, to rank 0."""

    def __init__(self, rank: int, invitation: Invitation, same_node: bool, seconds: float) -> None:
        super().__init__(rank)
        self._line = _Line(self._call(invitation, same_node, seconds), peer=0)
        self._line.connection.setblocking(False)
        self._selector.register(self._line.connection, selectors.EVENT_READ, self._line)

    def _call(self, invitation: Invitation, same_node: bool, seconds: float) -> socket.socket:
        addresses = list(invitation.addresses)
        if same_node:
            addresses.reverse()
        hello = _encode(_HELLO, {"rank": self.rank, "secret": invitation.secret})
        problems = []
        for address in addresses:
            try:
                connection = socket.create_connection((address, invitation.port), min(seconds, 5.0))
                connection.settimeout(seconds)
                connection.sendall(hello)
                if json.loads(connection.makefile("rb", buffering=0).readline() or b"{}").get("topic") == _WELCOME:
                    return connection
                problems.append(f"{address}: not rank 0")
            except (OSError, ValueError) as problem:
                problems.append(f"{address}: {problem}")
        raise UserError(
            f"rank {self.rank} cannot call rank 0 at port {invitation.port} ({'; '.join(problems)})",
            where="side channel",
            remedy="check that the nodes can open TCP connections to each other",
        )

    def _lines(self) -> list[_Line]:
        return [self._line]

    def _dispatch(self, line: _Line, topic: str, message: dict[str, Any]) -> None:
        if topic == _BYE:
            line.said_bye = True
        elif topic in self._receivers:
            self._receivers[topic](0, message)


class NoChannel(Channel):
    """A single process has nobody to talk to."""

    def __init__(self) -> None:
        super().__init__(0)

    def send(self, topic: str, message: dict[str, Any], to: int | None = None) -> None:
        pass

    def close(self) -> None:
        self._wake_reader.close()
        self._wake_writer.close()

    def _lines(self) -> list[_Line]:
        return []

    def _dispatch(self, line: _Line, topic: str, message: dict[str, Any]) -> None:
        raise AssertionError("nobody can write here")
