"""Every other rank's end of the side channel: one line, to rank 0."""

from __future__ import annotations

import selectors
import socket
from typing import Any

from lockstep.errors import UserError
from lockstep.parallel.watch.channel import BYE, HELLO, WELCOME, Channel
from lockstep.parallel.watch.hub import Invitation
from lockstep.parallel.watch.line import Line, decode, encode


class Spoke(Channel):
    def __init__(self, rank: int, invitation: Invitation, seconds: float) -> None:
        super().__init__(rank)
        self._line = Line(self._call(invitation, seconds), peer=0)
        self._line.connection.setblocking(False)
        self._selector.register(self._line.connection, selectors.EVENT_READ, self._line)

    def _call(self, invitation: Invitation, seconds: float) -> socket.socket:
        hello = encode(HELLO, {"rank": self.rank, "secret": invitation.secret})
        problems = []
        for address, port in invitation.doors:
            try:
                connection = socket.create_connection((address, port), min(seconds, 5.0))
                connection.settimeout(seconds)
                connection.sendall(hello)
                if decode(connection.makefile("rb", buffering=0).readline())[0] == WELCOME:
                    return connection
                problems.append(f"{address}:{port}: not rank 0")
            except (OSError, ValueError) as problem:
                problems.append(f"{address}:{port}: {problem}")
        raise UserError(
            f"rank {self.rank} cannot call rank 0 ({'; '.join(problems)})",
            where="side channel",
            remedy="check that the nodes can open TCP connections to each other",
        )

    def _lines(self) -> list[Line]:
        return [self._line]

    def _dispatch(self, line: Line, topic: str, message: dict[str, Any]) -> None:
        if topic == BYE:
            line.said_bye = True
        elif topic in self._receivers:
            self._receivers[topic](0, message)
