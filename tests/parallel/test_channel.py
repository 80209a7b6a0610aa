"""The side channel and the watch, within one process."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.errors import UserError
from lockstep.parallel.watch import watch as watch_module
from lockstep.parallel.watch.channel import Channel
from lockstep.parallel.watch.hub import Hub, Invitation
from lockstep.parallel.watch.identity import Identity
from lockstep.parallel.watch.progress import Progress
from lockstep.parallel.watch.spoke import Spoke
from lockstep.parallel.watch.watch import Watch


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def serve(channel: Channel, lost: list[int] | None = None) -> None:
    channel.start(lambda rank: (lost if lost is not None else []).append(rank), lambda: None, lambda number: None)


@pytest.fixture
def hub() -> Iterator[Hub]:
    channel = Hub(3)
    yield channel
    channel._closing.set()


def test_messages_pass_both_ways_and_carry_the_sender(hub: Hub) -> None:
    heard: list[tuple[int, Any]] = []
    hub.on("note", lambda rank, message: heard.append((rank, message["n"])))
    serve(hub)
    spokes = [Spoke(rank, hub.invitation(), 5.0) for rank in (1, 2)]
    answers: list[tuple[int, Any]] = []
    for spoke in spokes:
        spoke.on("news", lambda rank, message, own=spoke.rank: answers.append((own, message["n"])))
        serve(spoke)
        spoke.send("note", {"n": 10 * spoke.rank})
    wait_for(lambda: len(heard) == 2)
    assert sorted(heard) == [(1, 10), (2, 20)]
    hub.send("news", {"n": 7})
    wait_for(lambda: len(answers) == 2)
    assert sorted(answers) == [(1, 7), (2, 7)]
    for spoke in spokes:
        spoke.close()


def test_a_broken_line_is_noticed_and_a_goodbye_is_not_a_loss(hub: Hub) -> None:
    lost: list[int] = []
    serve(hub, lost)
    leaving, dying = (Spoke(rank, hub.invitation(), 5.0) for rank in (1, 2))
    serve(leaving)
    leaving.close()
    dying._line.connection.close()
    wait_for(lambda: lost)
    time.sleep(0.1)
    assert lost == [2]


def test_strangers_are_shown_the_door(hub: Hub) -> None:
    lost: list[int] = []
    serve(hub, lost)
    invitation = hub.invitation()
    with pytest.raises(UserError, match="rank 1 cannot call rank 0"):
        Spoke(1, Invitation(invitation.doors, "guess"), 5.0)
    with socket.create_connection(invitation.doors[0]) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        stranger.settimeout(5)
        assert stranger.recv(100) == b""
    assert lost == []


def test_those_who_do_not_call_are_named(hub: Hub) -> None:
    serve(hub)
    spoke = Spoke(2, hub.invitation(), 5.0)
    serve(spoke)
    with pytest.raises(UserError, match=r"ranks \[1\] did not call"):
        hub.wait_for_all(0.3)
    spoke.close()


class _Quiet(Channel):
    """A channel that only remembers what was sent."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, topic: str, message: dict[str, Any], to: int | None = None) -> None:
        self.sent.append((topic, message))

    def _lines(self) -> list[Any]:
        return []

    def _dispatch(self, line: Any, topic: str, message: dict[str, Any]) -> None:
        raise AssertionError


class _Exit(BaseException):
    pass


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Rank 0's watch over three ranks, whose exit is an exception."""

    def leave(code: int) -> None:
        raise _Exit(code)

    monkeypatch.setattr(watch_module, "exit_now", leave)
    ranks = [Identity(rank, "host", 0, 0, "") for rank in range(3)]
    return Watch(Progress(10.0), _Quiet(0), ranks)


def beat(step: int, count: int, idle: float = 0.0, inside: str = "world", phase: str = "forward") -> dict[str, Any]:
    return {"step": step, "phase": phase, "counts": {"world": count}, "inside": inside, "idle": idle}


def test_the_rank_that_did_not_come_to_an_exchange_and_does_nothing_is_named(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(3):
        watch._on_beat(rank, beat(4, 8, idle=11, inside="") if rank == 1 else beat(5, 9))
    with caplog.at_level(logging.ERROR, "lockstep"), pytest.raises(_Exit):
        watch._on_overdue(2, {})
    assert "rank 1 (host, process 0) did not come" in caplog.text
    assert "it is in step 4 (forward)" in caplog.text
    assert watch.channel.sent[-1][1]["lost"] == [1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("idle", "phase"), [(0.0, "forward"), (60.0, "checkpoint"), (60.0, "validation")])
def test_a_rank_at_work_is_waited_for(idle: float, phase: str, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(3):
        watch._on_beat(rank, beat(4, 8, idle, "", phase) if rank == 0 else beat(4, 9))
    with caplog.at_level(logging.WARNING, "lockstep"):
        watch._on_overdue(2, {})
        watch._on_overdue(1, {})
    assert caplog.text.count(f"which is at work in step 4 ({phase})") == 1
    assert watch.channel.sent == []  # type: ignore[attr-defined]


def test_a_silent_rank_is_named_before_a_late_one(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    for rank in range(3):
        watch._on_beat(rank, beat(5, 8 if rank == 1 else 9))
    watch._seen[2].time -= 100
    with caplog.at_level(logging.ERROR, "lockstep"), pytest.raises(_Exit):
        watch._on_overdue(0, {})
    assert "rank 2 (host, process 0) gives no sign of life for 100 s" in caplog.text
    end = {"text": "", "lost": [2], "kill": True, "code": 1}
    assert watch.channel.sent[-1][1] | {"text": ""} == end  # type: ignore[attr-defined]


def test_waiting_within_the_limit_is_no_fault(watch: Watch) -> None:
    with watch.progress.sequence("world"):
        watch._on_tick()
    assert [topic for topic, _ in watch.channel.sent] == ["beat"]  # type: ignore[attr-defined]


def test_a_silent_rank_is_missed_while_ranks_may_take_all_their_time(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(3):
        watch._on_beat(rank, beat(0, 1))
    watch._seen[1].time -= 11
    watch._resumed -= 100
    with (
        watch.progress.allow(float("inf")),
        watch.progress.sequence("world"),
        caplog.at_level(logging.ERROR, "lockstep"),
        pytest.raises(_Exit),
    ):
        watch._on_tick()
    assert "rank 1 (host, process 0) gives no sign of life for 11 s" in caplog.text


def test_time_in_which_this_rank_was_stopped_itself_does_not_count(watch: Watch) -> None:
    with watch.progress.sequence("world"):
        watch.progress._since -= 100
        watch._last_tick -= 100
        for seen in watch._seen:
            seen.time -= 100
        watch._on_tick()
        assert [topic for topic, _ in watch.channel.sent] == ["beat"]  # type: ignore[attr-defined]
        watch._resumed -= 11
        with pytest.raises(_Exit):
            watch._on_tick()


def test_a_phase_can_be_given_more_time() -> None:
    progress = Progress(10.0)
    with progress.allow(600.0):
        assert progress.limit == 600.0
    assert progress.limit == 10.0


def test_a_process_is_known_again_and_another_one_never_taken_for_it() -> None:
    own = Identity.own(0)
    assert own == Identity.own(0)
    assert own.process == os.getpid()
    assert own.started > 0
    # A process of the same number that started at another time: it must not be ended.
    Identity(0, own.host, own.process, own.started + 1, own.namespace).kill()
    Identity(0, own.host, own.process, own.started, "elsewhere").kill()
