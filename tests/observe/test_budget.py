from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_group import on_ranks

from lockstep.observe.budget import (
    Budget,
    BudgetFile,
    Crowding,
    Interval,
    NullFile,
    budget_path,
    read_budget,
    summarise,
    told_apart,
)
from lockstep.parallel.group import Group
from lockstep.phases import BACKWARD, COMMUNICATION, FORWARD, PHASES, WAIT


def interval(frames: int = 10, ahead: float = 0.0, **seconds: float) -> Interval:
    return Interval({name: seconds.get(name, 0.0) for name in PHASES}, ahead, frames)


@given(
    st.lists(
        st.lists(st.floats(0.001, 100), min_size=len(PHASES), max_size=len(PHASES)),
        min_size=1,
        max_size=12,
    )
)
def test_shares_add_up_to_one(ranks: list[list[float]]) -> None:
    summary = summarise(5, 5, 0.0, [Interval(dict(zip(PHASES, rank, strict=True)), 0.0, 1) for rank in ranks])
    assert sum(summary.budget.values()) == pytest.approx(1)
    assert sum(summary.per_rank_samples_per_s) == pytest.approx(summary.samples_per_s)
    assert 0 <= summary.busy <= 1


def test_the_slowest_rank_is_the_one_that_others_wait_for() -> None:
    ranks = [interval(forward=4.0, wait=5.0, communication=1.0), interval(forward=9.0, communication=1.0)]
    summary = summarise(100, 50, 0.0, ranks)
    assert (summary.slowest, summary.fastest) == (1, 0)
    assert summary.per_rank_wait == [0.5, 0.0]
    assert summary.budget[FORWARD] == pytest.approx(0.65)
    assert summary.samples == 20


@pytest.mark.parametrize(
    ("threads", "busy", "processor", "evictions", "warned"),
    [
        (2, 20.0, 27.0, 3200, True),
        (2, 20.0, 39.0, 3200, False),  # as many cores as it has threads
        (2, 20.0, 22.0, 600, False),  # little to do for the second
        (2, 2.0, 2.7, 320, False),  # too short to tell
        (1, 20.0, 10.0, 3200, False),  # one thread waits for no other
        (0, 20.0, 10.0, 3200, False),  # a GPU
    ],
)
def test_threads_that_share_their_cores_with_others_are_told_once(
    threads: int, busy: float, processor: float, evictions: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    alone = replace(interval(forward=busy), processor=2 * busy)
    crowded = replace(interval(forward=busy), processor=processor, evictions=evictions)
    crowding = Crowding(threads)
    for _ in range(2):
        crowding.look([alone, crowded])
    assert len(caplog.records) == warned
    if warned:
        assert "rank 1 computes with 2 threads and gets 1.4 cores" in caplog.text
        assert "OMP_NUM_THREADS=1" in caplog.text


def test_the_line_names_shares_speed_and_the_slowest_rank() -> None:
    ranks = [
        interval(12, 0.1, data=0.1, forward=0.4, backward=0.5),
        interval(12, 0.1, data=0.1, forward=0.4, backward=0.4, wait=0.1),
    ]
    assert summarise(1, 1, 0.0, ranks).line() == (
        "budget: data 10 % geometry(ahead) 10 % forward 40 % backward 45 % communication 0 % wait 5 % "
        "optimizer 0 % output 0 % | 24 samples/s (12 + 12), slowest rank 0, busy 85 %"
    )


def test_geometry_without_threads_is_a_phase_of_its_own() -> None:
    line = summarise(1, 1, 0.0, [interval(1, 0.0, data=0.1, geometry=0.2, forward=0.7)]).line()
    assert line.startswith("budget: data 10 % geometry 20 % forward 70 % ")
    assert "ahead" not in line
    assert line.endswith("busy 90 %")


def test_many_ranks_are_shown_by_their_extremes() -> None:
    line = summarise(1, 1, 0.0, [interval(10 + rank, forward=1.0) for rank in range(64)]).line()
    assert "(10 to 73 on each of 64 ranks)" in line


class Recorded:
    """Intake and scalars of a test."""

    def __init__(self) -> None:
        self.frames, self.prepared = 0, 0.0
        self.values: dict[str, float] = {}

    def add(self, step: int, values: Any) -> None:
        self.values = dict(values)


def test_each_display_tells_of_what_came_since_the_last_one(tmp_path: Path) -> None:
    def work(group: Group) -> dict[str, float]:
        source = Recorded()
        file = BudgetFile(tmp_path / "budget.jsonl") if group.rank == 0 else NullFile()
        budget = Budget(group, source, file, source, shown=False)
        budget.begin(10)
        for step, frames in ((12, 4), (15, 9)):
            group.phases.enter(FORWARD)
            source.frames += frames
            group.phases.enter(BACKWARD)
            budget.show(step)
        return source.values

    values = on_ranks(2, work)
    first, second = read_budget(tmp_path / "budget.jsonl")
    assert (first["step"], first["steps"], first["samples"]) == (12, 2, 8)
    assert (second["step"], second["steps"], second["samples"]) == (15, 3, 18)
    assert second["budget"][COMMUNICATION] + second["budget"][WAIT] > 0
    assert values[1]["budget/busy"] == pytest.approx(second["busy"], rel=1e-4)
    assert values[1]["speed/samples_per_s"] == pytest.approx(sum(second["per_rank_samples_per_s"]), rel=1e-4)


def test_a_restart_cuts_lines_of_steps_that_are_done_again(tmp_path: Path) -> None:
    path = tmp_path / "budget.jsonl"
    first = BudgetFile(path)
    for step in (1, 10, 20):
        first.write(summarise(step, 1, 0.0, [interval(forward=1.0)]))
    first.close()
    with path.open("a") as file:
        file.write('{"step": 25, "bud')
    second = BudgetFile(path, restart_step=10)
    second.write(summarise(12, 2, 0.0, [interval(forward=1.0)]))
    second.close()
    assert [line["step"] for line in read_budget(path)] == [1, 10, 12]


@pytest.mark.parametrize(
    ("curve", "wanted"),
    [("lcurve.out", "budget.jsonl"), ("a/water.out", "a/water.budget.jsonl"), ("/dev/null", None)],
)
def test_the_file_lies_beside_the_learning_curve(curve: str, wanted: str | None) -> None:
    assert budget_path(curve) == (Path(wanted) if wanted else None)


def test_waiting_on_devices_is_what_the_least_waiting_rank_does_not_do() -> None:
    ranks = [interval(forward=3.0, communication=1.5), interval(forward=4.0, communication=0.5)]
    fast, slow = told_apart(ranks)
    assert (fast.seconds["wait"], fast.seconds["communication"]) == (1.0, 0.5)
    assert (slow.seconds["wait"], slow.seconds["communication"]) == (0.0, 0.5)
    assert [rank.wall for rank in (fast, slow)] == [rank.wall for rank in ranks]
