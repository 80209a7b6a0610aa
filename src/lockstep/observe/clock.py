"""The time of rank 0 on the other ranks, from questions and answers over the side channel."""

from __future__ import annotations

import threading
import time
from typing import Any

from lockstep.parallel.watch.channel import Channel

_TOPIC = "clock"
_QUESTIONS = 20
_PATIENCE = 1.0
_DRIFT = 20e-6
"""How far two clocks may part in a second: what quartz does, with a margin."""


class RemoteClock:
    """How far this rank's clock is behind that of rank 0, as far as can be told.

    An answer that took long to come and go tells little; one that is old tells less every second. So the offset is
    that of the answer whose uncertainty, grown by the drift of clocks since, is the smallest.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._answer = threading.Event()
        self.offset, self._doubt, self._asked = 0.0, float("inf"), time.perf_counter()
        channel.on(_TOPIC, self._on_answer)

    @property
    def doubt(self) -> float:
        """Half-width of the interval that the offset lies in."""
        return self._doubt + _DRIFT * (time.perf_counter() - self._asked)

    def settle(self) -> None:
        """Ask a few times and wait for the answers."""
        for _ in range(_QUESTIONS):
            self._answer.clear()
            self.ask()
            self._answer.wait(_PATIENCE)

    def ask(self) -> None:
        """Ask once, and go on; the answer counts when it comes."""
        self._channel.send(_TOPIC, {"asked": time.perf_counter()})

    def _on_answer(self, sender: int, message: dict[str, Any]) -> None:
        now = time.perf_counter()
        doubt = (now - message["asked"]) / 2
        if doubt < self.doubt:
            self.offset = message["here"] - (now + message["asked"]) / 2
            self._doubt, self._asked = doubt, now
        self._answer.set()


class OwnClock:
    """Rank 0 itself: answers the others."""

    offset = 0.0
    doubt = 0.0

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        channel.on(_TOPIC, self._on_question)

    def settle(self) -> None:
        """There is nobody to ask."""

    def ask(self) -> None:
        """There is nobody to ask."""

    def _on_question(self, sender: int, message: dict[str, Any]) -> None:
        self._channel.send(_TOPIC, {**message, "here": time.perf_counter()}, to=sender)
