from __future__ import annotations

import time

import pytest

from lockstep import phases as module
from lockstep.phases import BACKWARD, COMMUNICATION, FORWARD, OUTPUT, VALIDATION, WAIT, DevicePhases, Phases


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


def test_a_device_is_awaited_before_an_exchange_and_elsewhere_only_when_watched() -> None:
    awaited: list[str] = []
    phases = DevicePhases(lambda: awaited.append("always off"), always=False)
    phases.enter(FORWARD)
    phases.enter(COMMUNICATION)
    assert len(awaited) == 1
    watched = DevicePhases(lambda: awaited.append("always on"), always=True)
    watched.enter(FORWARD)
    assert awaited[1:] == ["always on"]


def test_a_change_of_phase_costs_next_to_nothing() -> None:
    phases, count = Phases(), 20_000
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            phases.enter(FORWARD)
        best = min(best, time.perf_counter() - began)
    assert best / count < 3e-6
