"""Who is missing: notices a rank that died, stopped, failed or hangs, names it, and ends this rank.

Every rank tells rank 0 once a second where it is (`Progress`) and whether it works (`Work`), and rank 0 tells all that
it lives. Four things end a job:
- a connection of the side channel closes: that rank is gone;
- a rank says that it failed;
- a rank gives no signs of life for longer than the timeout, whether others wait for it or not;
- a rank has waited in one exchange for longer than the limit: rank 0 looks up who has not come (`judgement`). One that
  is at work is waited for, however long it takes; one that hangs, or waits for something else, is not.
Time in which the whole job was stopped (by Ctrl-Z, or by a scheduler that suspends it) does not count.
Rank 0 tells all others, and each ends by itself; none depends on the launcher to be ended.

The limit is kept by this thread and not inside the exchanges, because MPI has no time limit of its own and the
ways to add one to each call (polling) cost time at every step.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from lockstep.parallel.watch.channel import Channel
from lockstep.parallel.watch.ending import EXIT_LOST, exit_now
from lockstep.parallel.watch.identity import Identity
from lockstep.parallel.watch.judgement import Seen, awaited, is_at_work
from lockstep.parallel.watch.progress import Progress
from lockstep.parallel.watch.work import Work

log = logging.getLogger("lockstep.parallel.watch.watch")

STOPPING = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers send before they end a job, to give it time to save."""
_PATIENCE_WITH_HUB = 3.0
_GRACE_AFTER_SIGNAL = 3.0
_PAUSE = 2.0
"""Seconds between two looks around after which this rank itself must have been stopped, or starved."""


class Watch:
    """Watches over the ranks from within one of them; works in the side channel's thread."""

    def __init__(self, progress: Progress, channel: Channel, ranks: Sequence[Identity]) -> None:
        self.progress, self.channel, self.ranks = progress, channel, ranks
        self.rank, self.size = channel.rank, len(ranks)
        # Rank 0 hears about a hundred signs of life a second at most, however many ranks there are.
        self._interval = max(1.0, self.size / 100)
        self._seen = [Seen(time.monotonic()) for _ in ranks]
        self._work = Work(progress)
        self._next_beat = self._next_report = 0.0
        self._last_tick = self._resumed = time.monotonic()
        self._waited_for: tuple[str, int] = ("", 0)
        self._signal = self._requests = 0
        self._signal_since = 0.0
        # Both are taken once and never given back: rank 0's two threads may learn of one mistake at the same moment.
        self._announced, self._ended = threading.Lock(), threading.Lock()
        self._failing = False
        channel.on("beat", self._on_beat)
        channel.on("failed", self._on_failed)
        channel.on("overdue", self._on_overdue)
        channel.on("end", self._on_end)

    def start(self) -> None:
        self.channel.start(self._on_lost, self._on_tick, self._on_signal)

    def failed(self, reason: str) -> None:
        """Tells the others that this rank is about to end, and why."""
        self._failing = True
        text = f"{self.ranks[self.rank]} failed in {_where(self.progress)}: {reason}"
        topic = "end" if self.rank == 0 else "failed"
        self.channel.send(topic, {"text": text, "lost": [self.rank], "kill": False, "code": EXIT_LOST})
        self.channel.flush(1.0)

    def mistaken(self, reason: str, code: int) -> None:
        """Has rank 0 tell a mistake that all ranks may have made, so that it is told once. Rank 0 then ends us."""
        text = f"rank {self.rank} in {_where(self.progress)}: {reason}"
        message = {"text": text, "lost": [self.rank], "kill": False, "code": code}
        if self.rank == 0:
            self._on_failed(0, message)
        else:
            self.channel.send("failed", message)
            self.channel.flush(1.0)

    def _on_tick(self) -> None:
        now = time.monotonic()
        if now - self._last_tick > _PAUSE:
            self._resumed = now
            self._work = Work(self.progress)
        self._last_tick = now
        if self._signal:
            self._obey_signal(now - self._signal_since)
        if now >= self._next_beat:
            self._next_beat = now + self._interval
            self._beat()
        if min(self.progress.waiting, now - self._resumed) > self.progress.limit and now >= self._next_report:
            self._next_report = now + self._interval
            self._report_overdue()
        self._end_if_silent(now)

    def _end_if_silent(self, now: float) -> None:
        """Ends the job for a rank that is stopped, whether others wait for it or not."""
        patience = max(self.progress.timeout, 3 * self._interval) + (_PATIENCE_WITH_HUB if self.rank else 0.0)
        watched = range(1, self.size) if self.rank == 0 else range(1)
        silent = [r for r in watched if now - max(self._seen[r].time, self._resumed) > patience]
        if silent and self.rank == 0:
            text = "; ".join(map(self._silent, silent))
            self._announce(f"{text} (limit {self.progress.timeout:g} s)", silent, kill=True)
        elif silent:
            self._end(self._silent(0), [0], kill=True)

    def _beat(self) -> None:
        progress = self.progress
        inside = progress.inside
        message = {
            "step": progress.step,
            "phase": progress.phase,
            "counts": progress.counts(),
            "inside": inside.name if inside else "",
            "idle": self._work.idle(),
        }
        if self.rank == 0:
            self._on_beat(0, message)
        self.channel.send("beat", message)

    def _on_beat(self, sender: int, message: dict[str, Any]) -> None:
        self._seen[sender] = Seen(time.monotonic(), **message)

    def _report_overdue(self) -> None:
        self._beat()
        if self.rank == 0:
            self._on_overdue(0, {})
        else:
            self.channel.send("overdue", {})

    def _on_overdue(self, sender: int, message: dict[str, Any]) -> None:
        """Rank 0's verdict: first those that are silent, then those that have not come and do nothing."""
        now, waiting = time.monotonic(), self._seen[sender]
        silent = [r for r, seen in enumerate(self._seen) if now - seen.time > 2 * self._interval + 1]
        late = awaited(self._seen, sender)
        lost = silent or [r for r in late if not is_at_work(self._seen[r], self.progress.timeout)]
        if late and not lost:
            self._wait_for(late, sender)
            return
        if silent:
            text = "; ".join(self._silent(rank) for rank in silent)
        elif lost:
            text = "; ".join(
                f"{self.ranks[r]} did not come to the exchange that rank {sender} waited for; "
                f"it is in {self._seen[r].where}"
                for r in lost
            )
        else:
            text = (
                f"rank {sender} waited too long in {waiting.where}, though all ranks are alive and "
                "in the same exchange: messages between the nodes get lost"
            )
        self._announce(f"{text} (limit {self.progress.limit:g} s)", lost, kill=bool(silent))

    def _wait_for(self, late: list[int], sender: int) -> None:
        """Says once for each exchange that it takes long, and why nobody is ended for it."""
        waiting = self._seen[sender]
        exchange = waiting.inside, waiting.counts.get(waiting.inside, 0)
        if exchange != self._waited_for:
            self._waited_for = exchange
            for rank in late:
                log.warning(
                    "rank %d waits for %s, which is at work in %s", sender, self.ranks[rank], self._seen[rank].where
                )

    def _silent(self, rank: int) -> str:
        seen = self._seen[rank]
        quiet = time.monotonic() - seen.time
        return (
            f"{self.ranks[rank]} gives no sign of life for {quiet:.0f} s, while rank {self.rank} is in "
            f"{_where(self.progress)}; last heard of in {seen.where}"
        )

    def _on_lost(self, rank: int) -> None:
        text = (
            f"{self.ranks[rank]} is gone, while rank {self.rank} is in {_where(self.progress)}; "
            f"last heard of in {self._seen[rank].where}"
        )
        if self.rank == 0:
            self._announce(text, [rank])
        else:
            self._end(text, [rank])

    def _on_failed(self, sender: int, message: dict[str, Any]) -> None:
        self._announce(message["text"], [sender], code=message["code"])

    def _on_end(self, sender: int, message: dict[str, Any]) -> None:
        self._end(**message, told=True)

    def _on_signal(self, number: int) -> None:
        """The first request to stop is for the training, which saves; the next one, or Ctrl-C, for this rank."""
        if number in STOPPING:
            self._requests += 1
            if self._requests == 1 and self.progress.step > 0:
                return
        elif number != signal.SIGINT:
            return
        if not self._signal:
            self._signal, self._signal_since = number, time.monotonic()

    def _obey_signal(self, since: float) -> None:
        """Ends a rank whose main thread cannot: its own handler runs only once it has left its exchange."""
        if self.progress.waiting or since > _GRACE_AFTER_SIGNAL:
            name = signal.Signals(self._signal).name
            log.error("%s in %s: this rank ends", name, _where(self.progress))
            self.failed(name)
            exit_now(128 + self._signal)

    def _announce(self, text: str, lost: list[int], kill: bool = False, code: int = EXIT_LOST) -> None:
        if self._failing or self._ended.locked() or not self._announced.acquire(blocking=False):
            return
        # Written before anything else: some launchers kill the remaining ranks within a millisecond or two.
        log.error("%s. All ranks end.", text)
        self.channel.send("end", {"text": text, "lost": lost, "kill": kill, "code": code})
        self.channel.flush(1.0)
        self._end(text, lost, kill, code)

    def _end(self, text: str, lost: list[int], kill: bool = False, code: int = EXIT_LOST, told: bool = False) -> None:
        # A rank that fails by itself is about to end, with its own message and exit code.
        if self._failing or not self._ended.acquire(blocking=False):
            return
        if self.rank != 0:
            log.log(
                logging.WARNING if told else logging.ERROR,
                "this rank ends in %s because %s",
                _where(self.progress),
                text,
            )
        if kill:
            for rank in lost:
                self.ranks[rank].kill()
        exit_now(code)


def _where(progress: Progress) -> str:
    return f"step {progress.step} ({progress.phase})"
