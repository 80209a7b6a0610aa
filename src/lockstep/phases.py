"""What this rank is doing now, and how long it has done what: a clock that is always on because it is nearly free."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.device import Mark

START = "start"
DATA = "data"
GEOMETRY = "geometry"
FORWARD = "forward"
BACKWARD = "backward"
COMMUNICATION = "communication"
WAIT = "wait"
OPTIMIZER = "optimizer"
VALIDATION = "validation"
CHECKPOINT = "checkpoint"
OUTPUT = "output"

PHASES = (DATA, GEOMETRY, FORWARD, BACKWARD, COMMUNICATION, WAIT, OPTIMIZER, VALIDATION, CHECKPOINT, OUTPUT)
"""The phases of a training, in the order in which they are shown; together they are all of its time."""
BUSY = (GEOMETRY, FORWARD, BACKWARD, OPTIMIZER, VALIDATION)
"""The phases in which the device computes."""

Listener = Callable[[str, float, float], None]


class Phases:
    """Adds up the time of each phase; a phase within another one interrupts it, so that no second counts twice.

    Belongs to the training's thread.

    Attributes:
        current: the present phase.
        since: when it began, or when what was set apart from it ended, by `time.perf_counter`.
        seconds: how long each phase has taken, without the present one.
        listeners: called with name, beginning and end of each phase that ends.
        on_time: whether the device is where the program is, so that the host's clock tells when this rank does what.
    """

    on_time = True

    def __init__(self) -> None:
        self.current = START
        self.since = perf_counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.listeners: tuple[Listener, ...] = ()
        self._within = {name: _Within(self, name) for name in PHASES}

    def enter(self, name: str) -> str:
        """Begin the phase `name` now; returns the one that it ends."""
        now = perf_counter()
        before = self.current
        self._lasted(before, now - self.since)
        began, self.current, self.since = self.since, name, now
        for listener in self.listeners:
            listener(before, began, now)
        return before

    def __call__(self, name: str) -> _Within:
        """The phase `name` for a `with` block; the one before goes on after it."""
        return self._within[name]

    def set_apart(self, name: str, seconds: float) -> float:
        """Count the first `seconds` of the present phase as `name`, as far as it has lasted; returns how many."""
        seconds = min(max(seconds, 0.0), perf_counter() - self.since)
        self.seconds[name] += seconds
        self.since += seconds
        return seconds

    def totals(self) -> dict[str, float]:
        """How long each phase has taken up to now, the present one included."""
        self.enter(self.current)
        return {name: self.seconds[name] for name in PHASES}

    def _lasted(self, name: str, seconds: float) -> None:
        """The phase `name` has ended, after `seconds` by the host's clock."""
        self.seconds[name] += seconds


class _Within:
    """A phase for a `with` block. One object for each phase: a phase is never within itself."""

    __slots__ = ("_before", "_name", "_phases")

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases, self._name = phases, name
        self._before = name

    def __enter__(self) -> None:
        self._before = self._phases.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error leaves the phase as it is: what is said about the error then names where it happened.
        if error is None:
            self._phases.enter(self._before)


class SettledPhases(Phases):
    """For those who look closely at a device that works behind the program's back: waits for it at every change.

    That lets the device run idle while the next phase is made ready, which is the price of seeing each by itself.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        super().__init__()
        self._settle = settle

    def enter(self, name: str) -> str:
        self._settle()
        return super().enter(name)


class DevicePhases(Phases):
    """By the clock of a device that works behind the program's back, without a wait.

    A change of phase leaves a mark in the device's queue of work, which is read when the device has come to it. A phase
    then lasts as long as the device took for what was asked of it, and for waiting to be asked. Nobody can tell on time
    when a rank comes to an exchange, so that waiting for others is a part of it.
    """

    on_time = False

    def __init__(self, mark: Callable[[], Mark]) -> None:
        super().__init__()
        self._mark, self._last = mark, mark()
        self._ended: deque[tuple[str, Mark, Mark]] = deque()

    def set_apart(self, name: str, seconds: float) -> float:
        return 0.0

    def totals(self) -> dict[str, float]:
        """Waits for the device."""
        self.enter(self.current)
        self._last.wait()
        self._read()
        return {name: self.seconds[name] for name in PHASES}

    def _lasted(self, name: str, seconds: float) -> None:
        now = self._mark()
        self._ended.append((name, self._last, now))
        self._last = now
        self._read()

    def _read(self) -> None:
        while self._ended and self._ended[0][2].reached():
            name, began, ended = self._ended.popleft()
            self.seconds[name] += ended.seconds_since(began)
