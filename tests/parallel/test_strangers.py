"""Whatever strangers send to the side channel, or do not send: the ranks' own lines go on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lockstep.parallel import addresses
from lockstep.parallel.watch import hub as hub_module
from lockstep.parallel.watch.hub import Hub
from lockstep.parallel.watch.spoke import Spoke

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6)
GREETING = st.fixed_dictionaries({"topic": st.just("hello") | JSON}, optional={"secret": JSON, "rank": JSON})
LINES = st.lists(st.binary(max_size=50) | (JSON | GREETING).map(lambda value: json.dumps(value).encode()), max_size=4)
DEEP = b"[" * 100_000


class Ranks:
    """Rank 0's end, with rank 1 on its line and rank 2 still to come, so that rank 0 listens."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.heard: list[Any] = []
        self.hub = Hub(3)
        self.hub.on("note", lambda rank, message: self.heard.append(message["n"]))
        self.hub.start(self.lost.append, lambda: None, lambda number: None)
        self.spoke = Spoke(1, self.hub.invitation(), 5.0)
        self.spoke.start(lambda rank: None, lambda: None, lambda number: None)

    def call(self) -> socket.socket:
        return socket.create_connection(self.hub.invitation().doors[0], 5.0)

    def still_talk(self) -> None:
        """A message of rank 1 arrives."""
        number = len(self.heard)
        self.spoke.send("note", {"n": number})
        wait_for(lambda: self.heard[-1:] == [number])
        assert self.lost == []
        assert self.hub._thread.is_alive()

    def close(self) -> None:
        for channel in (self.spoke, self.hub):
            channel._closing.set()
            channel._wake()
            channel._thread.join(5.0)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES)
@example(lines=[b"[]"])
@example(lines=[b"null"])
@example(lines=['{"topic": "hello", "rank": 2, "secret": "gehéim"}'.encode()])
@example(lines=[b'{"topic": "hello", "rank": 2, "secret": "\\ud800"}'])
@example(lines=[b'{"topic": "hello", "secret": 1, "rank": 2}'])
@example(lines=[b'{"topic": ["hello"]}'])
@example(lines=[b'{"topic": "beat"}', b'{"topic": "end", "text": "", "lost": [], "kill": true}'])
@example(lines=[b"9" * 5000])
@example(lines=[DEEP])
@example(lines=[b"\xff\xfe\x00"])
def test_anything_a_stranger_sends_is_survived(lines: list[bytes], ranks: Ranks) -> None:
    with ranks.call() as stranger:
        stranger.sendall(b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines))
        if any(line.strip() for line in lines):
            stranger.settimeout(5.0)
            assert reads_to_the_end(stranger) == b""
    ranks.still_talk()


def reads_to_the_end(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(100)
    except ConnectionResetError:
        return b""


def test_a_rank_cannot_come_twice_nor_one_that_there_is_not(ranks: Ranks) -> None:
    secret = ranks.hub.invitation().secret
    for rank in (1, 0, 3, -1, True, 2.0):
        with ranks.call() as stranger:
            stranger.sendall(json.dumps({"topic": "hello", "secret": secret, "rank": rank}).encode() + b"\n")
            stranger.settimeout(5.0)
            assert reads_to_the_end(stranger) == b""
    ranks.still_talk()


def test_silent_strangers_are_shown_the_door(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIME_TO_GREET", 0.2)
    with ranks.call() as stranger:
        stranger.sendall(b'{"topic": "hel')
        stranger.settimeout(10.0)
        assert reads_to_the_end(stranger) == b""
    ranks.still_talk()


def test_there_are_never_many_strangers_and_a_rank_still_gets_through(ranks: Ranks) -> None:
    strangers = [ranks.call() for _ in range(100)]
    try:
        ranks.still_talk()
        wait_for(lambda: len(ranks.hub._strangers) <= hub_module._MOST_STRANGERS + 3)
        last = Spoke(2, ranks.hub.invitation(), 5.0)
        last._line.connection.close()
    finally:
        for stranger in strangers:
            stranger.close()


def test_nobody_listens_any_more_once_all_ranks_are_there(ranks: Ranks) -> None:
    door = ranks.hub.invitation().doors[0]
    last = Spoke(2, ranks.hub.invitation(), 5.0)
    ranks.hub.wait_for_all(5.0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(door, 5.0)
    ranks.still_talk()
    assert threading.active_count() >= 2
    last._line.connection.close()


def test_rank_0_listens_where_the_others_are_and_nowhere_else(ranks: Ranks) -> None:
    assert [address for address, _ in ranks.hub.invitation().doors] == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("meeting", "others", "expected"),
    [
        ("10.0.0.1", [["node1", "10.0.0.2"]], ["10.0.0.1"]),
        ("localhost", [["node1", "10.0.0.2"], ["node2", "10.9.0.2"]], ["10.0.0.1", "10.9.0.1"]),
        ("", [["unknown", "10.0.0.2"]], ["10.0.0.1"]),
        ("", [["unknown"]], ["10.0.0.1", "10.9.0.1"]),
    ],
)
def test_between_hosts_it_is_the_address_they_meet_at(
    meeting: str, others: list[list[str]], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with two networks and a loopback."""
    routes = {"10.0.0.1": "10.0.0.1", "localhost": "127.0.0.1", "10.0.0.2": "10.0.0.1", "10.9.0.2": "10.9.0.1"}
    monkeypatch.setattr(addresses, "address_towards", routes.get)
    monkeypatch.setattr(addresses, "interfaces", lambda: {"lo": "127.0.0.1", "a": "10.0.0.1", "b": "10.9.0.1"})
    assert addresses.addresses_for(meeting, others) == expected
