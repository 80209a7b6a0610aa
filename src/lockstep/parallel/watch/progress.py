"""Where this rank is: its step, its phase, and the exchange with others it may be waiting in."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from lockstep.parallel.watch import witness
from lockstep.phases import COMMUNICATION, Phases

WORLD = "world"


class Exchanges:
    """The exchanges of one group of ranks, counted: all its ranks are in the same one, or on their way to it.

    A context manager around each of them; entering and leaving cost well under a microsecond, which matters beside an
    MPI exchange of a few.
    """

    __slots__ = ("_progress", "count", "name")

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self.name, self.count = progress, name, 0

    def __enter__(self) -> None:
        self.count += 1
        self._progress.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.end()


class Progress:
    """State of one rank, written by the training thread and read by the side channel's thread.

    A rank may belong to several groups, each with a sequence of exchanges of its own.

    Attributes:
        timeout: seconds that an exchange may take, unless more is allowed; and that a rank may be silent at any time.
        phases: the clock of this rank's phases; an exchange interrupts the one it is called in.
        inside: the sequence of the exchange that this rank is in; None outside of one.
        stop_signal: the signal that has asked this rank to stop; 0 for none. The ranks agree on it at their next step.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._allowed = 0.0
        self.step = 0
        self.phases = Phases()
        self.inside: Exchanges | None = None
        self.stop_signal = 0
        self._sequences: dict[str, Exchanges] = {}
        self._since = 0.0
        self._interrupted = ""
        self.notes: mmap.mmap | None = None

    @property
    def phase(self) -> str:
        """What this rank does now, or what it does the present exchange for."""
        return self._interrupted or self.phases.current

    def at(self, step: int, phase: str) -> None:
        """Tells what this rank does now; messages about a lost rank repeat it."""
        self.step = step
        self.phases.enter(phase)
        if self.notes is not None:
            witness.note(self.notes, step, phase)

    def sequence(self, name: str) -> Exchanges:
        """The exchanges of the group `name`, which this rank is one of."""
        return self._sequences.setdefault(name, Exchanges(self, name))

    def counts(self) -> dict[str, int]:
        """How many exchanges this rank has come to, in each of its groups."""
        return {name: sequence.count for name, sequence in list(self._sequences.items())}

    @property
    def limit(self) -> float:
        """Seconds that an exchange may take now."""
        return max(self.timeout, self._allowed)

    @contextmanager
    def allow(self, seconds: float) -> Iterator[None]:
        """Lets exchanges take longer, for phases in which one rank may work alone for a while.

        A rank that has died or stopped is noticed all the same, only a slow one is given more time.
        """
        usual, self._allowed = self._allowed, max(seconds, self._allowed)
        try:
            yield
        finally:
            self._allowed = usual

    @property
    def waiting(self) -> float:
        """Seconds spent in the present exchange; 0 outside of one."""
        since = self._since
        return time.monotonic() - since if since else 0.0

    def begin(self, sequence: Exchanges) -> None:
        """An exchange begins."""
        self._since = time.monotonic()
        self.inside = sequence
        self._interrupted = self.phases.enter(COMMUNICATION)

    def end(self) -> None:
        """The exchange is over, or has failed."""
        self.phases.enter(self._interrupted)
        self._interrupted = ""
        self.inside = None
        self._since = 0.0
