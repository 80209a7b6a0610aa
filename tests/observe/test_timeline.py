from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trace_check import read_trace

from lockstep.errors import UserError
from lockstep.observe import timeline as module
from lockstep.observe.clock import OwnClock, RemoteClock
from lockstep.observe.timeline import TimelineFile, Tracer, events_per_rank
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.launchers import alone
from lockstep.phases import BACKWARD, COMMUNICATION, FORWARD


class Wire:
    """Two ends of a side channel whose messages take a while; the other end's clock goes by `ahead`."""

    def __init__(self, delays: list[float]) -> None:
        self.delays = iter(delays)
        self.receivers: dict[int, Callable[[int, dict[str, Any]], None]] = {}

    def end(self, rank: int) -> Any:
        def on(topic: str, receive: Callable[[int, dict[str, Any]], None]) -> None:
            self.receivers[rank] = receive

        def send(topic: str, message: dict[str, Any], to: int | None = None) -> None:
            time.sleep(next(self.delays, 0.0))
            self.receivers[1 - rank](rank, message)

        return SimpleNamespace(on=on, send=send)


@pytest.mark.parametrize("ahead", [0.0, 1234.5, -3.0])
def test_the_offset_is_that_of_the_quickest_answer(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire([0.4, 0.0, 0.0, 0.3, 0.0, 0.0])
    answering = OwnClock(wire.end(0))
    real = time.perf_counter

    def on_question(sender: int, message: dict[str, Any]) -> None:
        answering._channel.send("clock", {**message, "here": real() + ahead}, to=sender)

    wire.receivers[0] = on_question
    clock = RemoteClock(wire.end(1))
    clock.settle()
    assert clock.offset == pytest.approx(ahead, abs=0.1)
    assert clock.doubt < 0.1


def test_an_old_answer_gives_way_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RemoteClock(Wire([]).end(1))
    now = time.perf_counter()
    clock._on_answer(0, {"asked": now - 0.0001, "here": now})
    best = clock.offset
    clock._on_answer(0, {"asked": time.perf_counter() - 0.1, "here": now + 50})
    assert clock.offset == best
    # Two clocks may have parted by 0.2 s after ten thousand seconds.
    clock._asked -= 10_000
    clock._on_answer(0, {"asked": time.perf_counter() - 0.1, "here": time.perf_counter() + 50})
    assert clock.offset == pytest.approx(50, abs=0.2)


def tracer(file: TimelineFile, offset: float = 0.0) -> Tracer:
    clock: Any = SimpleNamespace(offset=offset, ask=lambda: None)
    group = SoloGroup(alone.detect({}))
    return Tracer(group, clock, 0.0, lambda batch: file.receive(0, batch))


def test_events_keep_their_track_order_and_details(tmp_path: Path) -> None:
    file = TimelineFile(str(tmp_path / "t.json"), ["here"])
    events = tracer(file)
    events.phase(FORWARD, 1.0, 1.5)
    events.phase(BACKWARD, 1.5, 2.0)
    events.count("MPI_Allreduce", None, 2.0, 0.25, 2.5)
    events.phase(FORWARD, 2.5, 3.0)
    events.send(last=True)
    file.close(1.0)
    tracks = read_trace(tmp_path / "t.json")
    assert [(s.began, s.ended) for s in tracks[0, "forward"]] == [(1e6, 1.5e6), (2.5e6, 3e6)]
    wait, transfer = tracks[0, COMMUNICATION]
    assert (wait.name, wait.began, wait.ended) == ("wait for other ranks", 2e6, 2.25e6)
    assert (transfer.name, transfer.ended, transfer.details["bytes"]) == ("MPI_Allreduce", 2.5e6, 0)


def test_a_corrected_clock_never_makes_events_overlap(tmp_path: Path) -> None:
    file = TimelineFile(str(tmp_path / "t.json"), ["here"])
    events = tracer(file, offset=0.2)
    events.phase(FORWARD, 1.0, 1.5)
    events.send()
    events._clock.offset = 0.0
    events.phase(FORWARD, 1.5, 2.0)
    events.send(last=True)
    file.close(1.0)
    first, second = read_trace(tmp_path / "t.json")[0, "forward"]
    assert second.began == first.ended
    assert second.ended == 2e6


def test_geometry_has_a_track_for_each_thread(tmp_path: Path) -> None:
    file = TimelineFile(str(tmp_path / "t.json"), ["here"])
    events = tracer(file)
    prepare = events.traced(lambda batch: batch.number * 2)
    batches: Any = [SimpleNamespace(number=number) for number in range(2)]
    results: list[int] = []
    for batch in batches:
        thread = threading.Thread(target=lambda b=batch: results.append(prepare(b)), name=f"loader_{batch.number}")
        thread.start()
        thread.join()
    events.send(last=True)
    file.close(1.0)
    assert results == [0, 2]
    tracks = read_trace(tmp_path / "t.json")
    assert [tracks[0, f"geometry (loader {n})"][0].details["micro-batch"] for n in range(2)] == [0, 1]


def test_a_file_whose_writer_was_killed_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = TimelineFile(str(path), ["here", "there"])
    events = tracer(file)
    for number in range(100):
        events.phase(FORWARD, number, number + 0.5)
    events.send()
    deadline = time.monotonic() + 5
    while path.read_text().count('"X"') < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    text = path.read_text()
    assert len(read_trace(path, closed=False)[0, "forward"]) == 100
    path.write_text(text[:-30])
    assert len(read_trace(path, closed=False)[0, "forward"]) == 99


def test_a_long_run_is_noted_up_to_a_limit_that_the_timeline_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVENTS_OF_A_RANK", 10)
    file = TimelineFile(str(tmp_path / "t.json"), ["here"])
    events = tracer(file)
    for number in range(100):
        events.phase(FORWARD, number, number + 0.5)
    events.send(last=True)
    file.close(1.0)
    forward = read_trace(tmp_path / "t.json")[0, "forward"]
    assert len(forward) == 10
    assert "no more events" in forward[-1].name


def test_many_ranks_share_the_limit() -> None:
    assert events_per_rank(1) == events_per_rank(10) == 200_000
    assert events_per_rank(1000) == 2000


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the timeline cannot be written"):
        TimelineFile(str(tmp_path / "missing" / "t.json"), ["here"])
