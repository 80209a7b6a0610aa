"""One connection of the side channel: JSON messages, one a line, read and written without ever waiting."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

NOBODY = -1


class ForeignError(ValueError):
    """Something arrived that none of our ranks would send."""


@dataclass
class Line:
    """A connection, with the bytes of a message that has not arrived, or not left, as a whole.

    Attributes:
        peer: the rank at the other end; NOBODY before it has shown that it is one.
        limit: bytes that a message may have.
        since: when the connection was made, by `time.monotonic`.
    """

    connection: socket.socket
    peer: int = NOBODY
    limit: int = 1 << 26
    said_bye: bool = False
    received: bytes = b""
    to_send: bytearray = field(default_factory=bytearray)
    since: float = field(default_factory=time.monotonic)

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """Topics and contents of the messages that have arrived. ConnectionError when the peer is gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed by the peer")
        *lines, self.received = (self.received + data).split(b"\n")
        if max(map(len, (self.received, *lines))) > self.limit:
            raise ForeignError("an endless message")
        return [decode(line) for line in lines]

    def write(self) -> None:
        """Sends what the connection takes without waiting: a stopped peer must not stop us."""
        with contextlib.suppress(BlockingIOError):
            while self.to_send:
                del self.to_send[: self.connection.send(self.to_send)]


def encode(topic: str, message: dict[str, Any]) -> bytes:
    return json.dumps({"topic": topic, **message}, default=str).encode() + b"\n"


def decode(text: bytes) -> tuple[str, dict[str, Any]]:
    """Topic and content. Raises ForeignError, and nothing else, on whatever `encode` cannot have made."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ForeignError(str(problem)) from problem
    if not isinstance(message, dict) or not isinstance(message.get("topic"), str):
        raise ForeignError("no topic")
    return message.pop("topic"), message
