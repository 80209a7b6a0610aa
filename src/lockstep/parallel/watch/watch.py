"""Who is missing: notices a rank that died, stopped, failed or fell behind, names it, and ends this rank.

Every rank tells rank 0 once a second where it is (`Progress`), and rank 0 tells all. Four things end a job:
- a connection of the side channel closes: that rank is gone;
- a rank says that it failed;
- a rank has waited in one exchange for longer than the limit: rank 0 looks up who has not come, and whether it
  still gives signs of life;
- a rank gives no signs of life for longer than the timeout, whether others wait for it or not.
Time in which the whole job was stopped (by Ctrl-Z, or by a scheduler that suspends it) does not count.
Rank 0 tells all others, and each ends by itself; none depends on the launcher to be ended.

The limit is kept by this thread and not inside the exchanges, because MPI has no time limit of its own and the
ways to add one to each call (polling) cost time at every step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lockstep.parallel.watch import witness
from lockstep.parallel.watch.channel import Channel
from lockstep.parallel.watch.progress import Progress

log = logging.getLogger("lockstep.parallel.watch.watch")

EXIT_LOST = 1
_PATIENCE_WITH_HUB = 3.0
_GRACE_AFTER_SIGNAL = 3.0
_PAUSE = 2.0
"""Seconds between two looks around after which this rank itself must have been stopped, or starved."""


@dataclass(frozen=True)
class Identity:
    """Which process a rank is; enough to be sure never to end another one in its place."""

    rank: int
    host: str
    process: int
    started: int
    namespace: str

    @classmethod
    def own(cls, rank: int) -> Identity:
        return cls(rank, socket.gethostname(), os.getpid(), _started(os.getpid()), _namespace())

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.process})"

    def kill(self) -> None:
        """Ends a stopped process of this node, which no launcher could ask to leave."""
        if self.namespace == _namespace() and self.started == _started(self.process) != 0:
            try:
                os.kill(self.process, signal.SIGKILL)
            except OSError as problem:
                log.warning("could not end %s: %s", self, problem)


def _started(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def _namespace() -> str:
    """The kernel's boot and the process table this process lives in: equal only within one machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


@dataclass
class _Seen:
    """What rank 0 last heard from a rank."""

    time: float
    step: int = 0
    phase: str = "start"
    exchanges: int = 0
    waiting: bool = False


class Watch:
    """Watches over the ranks from within one of them; works in the side channel's thread."""

    def __init__(self, progress: Progress, channel: Channel, ranks: Sequence[Identity]) -> None:
        self.progress, self.channel, self.ranks = progress, channel, ranks
        self.rank, self.size = channel.rank, len(ranks)
        # Rank 0 hears about a hundred signs of life a second at most, however many ranks there are.
        self._interval = max(1.0, self.size / 100)
        self._seen = [_Seen(time.monotonic()) for _ in ranks]
        self._next_beat = 0.0
        self._last_tick = self._resumed = time.monotonic()
        self._overdue_since = 0.0
        self._signal = 0
        self._signal_since = 0.0
        self._ended = threading.Lock()
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
        self.channel.send(topic, {"text": text, "lost": [self.rank], "kill": False})
        self.channel.flush(1.0)

    def _on_tick(self) -> None:
        now = time.monotonic()
        if now - self._last_tick > _PAUSE:
            self._resumed = now
        self._last_tick = now
        if self._signal:
            self._obey_signal(now - self._signal_since)
        if now >= self._next_beat:
            self._next_beat = now + self._interval
            self._beat()
        if min(self.progress.waiting, now - self._resumed) <= self.progress.limit:
            self._overdue_since = 0.0
            self._end_if_silent(now)
        elif not self._overdue_since:
            self._overdue_since = now
            self._report_overdue()
        elif self.rank != 0 and now - self._overdue_since > _PATIENCE_WITH_HUB:
            self._end(self._silent(0), [0], kill=True)

    def _end_if_silent(self, now: float) -> None:
        """Ends the job for a rank that is stopped while nobody waits for it, or while it may take all its time."""
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
        message = {
            "step": progress.step,
            "phase": progress.phase,
            "exchanges": progress.exchanges,
            "waiting": progress.waiting > 0,
        }
        if self.rank == 0:
            self._on_beat(0, message)
        self.channel.send("beat", message)

    def _on_beat(self, sender: int, message: dict[str, Any]) -> None:
        self._seen[sender] = _Seen(time.monotonic(), **message)

    def _report_overdue(self) -> None:
        self._beat()
        if self.rank == 0:
            self._on_overdue(0, {"exchanges": self.progress.exchanges})
        else:
            self.channel.send("overdue", {"exchanges": self.progress.exchanges})

    def _on_overdue(self, sender: int, message: dict[str, Any]) -> None:
        """Rank 0's judgement: first those that are silent, then those that have not come to the exchange."""
        now, wanted = time.monotonic(), message["exchanges"]
        silent = [r for r, seen in enumerate(self._seen) if now - seen.time > 2 * self._interval + 1]
        behind = [r for r, seen in enumerate(self._seen) if seen.exchanges < wanted]
        late = [r for r in behind if self._seen[r].exchanges == min(self._seen[b].exchanges for b in behind)]
        if silent:
            text = "; ".join(self._silent(rank) for rank in silent)
        elif late:
            text = "; ".join(
                f"{self.ranks[r]} did not come to the exchange that rank {sender} waited for; "
                f"it is in {_where(self._seen[r])}"
                for r in late
            )
        else:
            text = (
                f"rank {sender} waited too long in {_where(self._seen[sender])}, though all ranks are alive and "
                "in the same exchange: messages between the nodes get lost"
            )
        self._announce(f"{text} (limit {self.progress.limit:g} s)", silent or late, kill=bool(silent))

    def _silent(self, rank: int) -> str:
        seen = self._seen[rank]
        quiet = time.monotonic() - seen.time
        return (
            f"{self.ranks[rank]} gives no sign of life for {quiet:.0f} s, while rank {self.rank} is in "
            f"{_where(self.progress)}; last heard of in {_where(seen)}"
        )

    def _on_lost(self, rank: int) -> None:
        text = (
            f"{self.ranks[rank]} is gone, while rank {self.rank} is in {_where(self.progress)}; "
            f"last heard of in {_where(self._seen[rank])}"
        )
        if self.rank == 0:
            self._announce(text, [rank])
        else:
            self._end(text, [rank])

    def _on_failed(self, sender: int, message: dict[str, Any]) -> None:
        self._announce(message["text"], [sender])

    def _on_end(self, sender: int, message: dict[str, Any]) -> None:
        self._end(message["text"], message["lost"], message["kill"])

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT) and not self._signal:
            self._signal, self._signal_since = number, time.monotonic()

    def _obey_signal(self, since: float) -> None:
        """Ends a rank whose main thread cannot: its own handler runs only once it has left its exchange."""
        if self.progress.waiting or since > _GRACE_AFTER_SIGNAL:
            name = signal.Signals(self._signal).name
            log.error("%s in %s: this rank ends", name, _where(self.progress))
            self.failed(name)
            exit_now(128 + self._signal)

    def _announce(self, text: str, lost: list[int], kill: bool = False) -> None:
        # Written before anything else: some launchers kill the remaining ranks within a millisecond or two.
        log.error("%s. All ranks end.", text)
        self.channel.send("end", {"text": text, "lost": lost, "kill": kill})
        self.channel.flush(1.0)
        self._end(text, lost, kill)

    def _end(self, text: str, lost: list[int], kill: bool = False) -> None:
        # A rank that fails by itself is about to end, with its own message and exit code.
        if self._failing or not self._ended.acquire(blocking=False):
            return
        if self.rank != 0:
            level = logging.ERROR if 0 in lost else logging.WARNING
            log.log(level, "this rank ends in %s because %s", _where(self.progress), text)
        if kill:
            for rank in lost:
                self.ranks[rank].kill()
        exit_now(EXIT_LOST)


def _where(place: Progress | _Seen) -> str:
    return f"step {place.step} ({place.phase})"


_last_acts: list[Callable[[], None]] = []


def before_exit(act: Callable[[], None]) -> Callable[[], None]:
    """Have `act` called, quickly, should this process end by `exit_now`; call what is returned to take it back."""
    _last_acts.append(act)
    return lambda: _last_acts.remove(act)


def _close_files() -> None:
    for act in _last_acts:
        with contextlib.suppress(Exception):
            act()
    logging.shutdown()


def exit_now(code: int) -> NoReturn:
    """Ends this process without the goodbyes of torch or MPI, which would wait for ranks that are gone."""
    witness.dismiss()
    closing = threading.Thread(target=_close_files, daemon=True)
    closing.start()
    closing.join(1.0)
    os._exit(code)
