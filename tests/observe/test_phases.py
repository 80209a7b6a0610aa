from __future__ import annotations

import time

import pytest

from lockstep import phases as module
from lockstep.phases import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OUTPUT,
    VALIDATION,
    WAIT,
    DevicePhases,
    Phases,
    SettledPhases,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def test_a_phase_lasts_until_the_next_one_begins(clock: Clock) -> None:
    phases = Phases()
    phases.enter(FORWARD)
    clock.now = 2.0
    assert phases.enter(BACKWARD) == FORWARD
    clock.now = 5.0
    totals = phases.totals()
    assert (totals[FORWARD], totals[BACKWARD]) == (2.0, 3.0)


def test_a_phase_within_another_takes_its_time_away_from_it(clock: Clock) -> None:
    phases = Phases()
    phases.enter(OUTPUT)
    clock.now = 1.0
    with phases(VALIDATION):
        clock.now = 4.0
        with phases(COMMUNICATION):
            clock.now = 4.5
        clock.now = 5.0
    clock.now = 7.0
    totals = phases.totals()
    assert (totals[OUTPUT], totals[VALIDATION], totals[COMMUNICATION]) == (3.0, 3.5, 0.5)
    assert sum(totals.values()) == 7.0


@pytest.mark.parametrize(("waited", "counted"), [(0.5, 0.5), (9.0, 2.0), (-1.0, 0.0)])
def test_waiting_is_set_apart_from_the_present_phase_but_never_more_than_it_lasted(
    clock: Clock, waited: float, counted: float
) -> None:
    phases = Phases()
    phases.enter(COMMUNICATION)
    clock.now = 2.0
    assert phases.set_apart(WAIT, waited) == counted
    clock.now = 3.0
    totals = phases.totals()
    assert (totals[WAIT], totals[COMMUNICATION]) == (counted, 3.0 - counted)


def test_an_error_leaves_the_phase_in_which_it_happened() -> None:
    phases = Phases()
    with pytest.raises(ZeroDivisionError), phases(VALIDATION):
        _ = 1 / 0
    assert phases.current == VALIDATION


def test_those_who_look_closely_wait_for_the_device_at_every_change() -> None:
    awaited: list[str] = []
    phases = SettledPhases(lambda: awaited.append("wait"))
    phases.enter(FORWARD)
    phases.enter(COMMUNICATION)
    assert len(awaited) == 2
    assert phases.on_time


class Queue:
    """A device that comes to its marks when it is told to."""

    def __init__(self) -> None:
        self.marks: list[Queue.Mark] = []
        self.waits = 0

    class Mark:
        def __init__(self, queue: Queue) -> None:
            self.queue, self.time = queue, -1.0
            queue.marks.append(self)

        def reached(self) -> bool:
            return self.time >= 0

        def wait(self) -> None:
            self.queue.waits += 1
            for mark in self.queue.marks:
                mark.time = max(mark.time, 0.0)

        def seconds_since(self, earlier: Queue.Mark) -> float:
            assert self.reached()
            return self.time - earlier.time

    def mark(self) -> Mark:
        return Queue.Mark(self)


def test_a_device_has_its_own_clock_and_is_not_waited_for(clock: Clock) -> None:
    queue = Queue()
    phases = DevicePhases(queue.mark)
    assert not phases.on_time
    phases.enter(FORWARD)
    phases.enter(BACKWARD)
    phases.enter(COMMUNICATION)
    assert phases.seconds[FORWARD] == 0.0
    for mark, time_there in zip(queue.marks, (1.0, 2.0, 5.0, 11.0), strict=True):
        mark.time = time_there
    phases.enter(OUTPUT)
    assert (phases.seconds[FORWARD], phases.seconds[BACKWARD]) == (3.0, 6.0)
    assert queue.waits == 0
    queue.marks[-1].time = 12.0
    assert phases.totals()[COMMUNICATION] == 1.0
    assert queue.waits == 1


def test_waiting_for_others_is_a_part_of_the_exchange_where_nobody_knows_it_on_time() -> None:
    phases = DevicePhases(Queue().mark)
    phases.enter(COMMUNICATION)
    assert phases.set_apart(WAIT, 1.0) == 0.0


def test_a_change_of_phase_costs_next_to_nothing() -> None:
    phases, count = Phases(), 20_000
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(count):
            phases.enter(FORWARD)
        best = min(best, time.process_time() - began)
    assert best / count < 100e-6  # typically 0.5e-6
