"""The mesh of ranks: which groups there are, what they exchange by each engine, and how the watch follows them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Outcome, finish, mpirun, start, torchrun
from thread_group import on_ranks

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group
from lockstep.parallel.mesh import Mesh
from lockstep.parallel.watch.judgement import Seen, awaited

SPLITTER = Path(__file__).with_name("splitter.py")
# Four ranks, two to a frame: what each sees in the world, across frames and within its own.
MEMBERS = {
    0: {"world": [0, 1, 2, 3], "data": [0, 2], "frame": [0, 1]},
    1: {"world": [0, 1, 2, 3], "data": [1, 3], "frame": [0, 1]},
    2: {"world": [0, 1, 2, 3], "data": [0, 2], "frame": [2, 3]},
    3: {"world": [0, 1, 2, 3], "data": [1, 3], "frame": [2, 3]},
}


def assert_exchanged_in_parts(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.text
    for rank, groups in MEMBERS.items():
        answer = outcome.rank(rank)
        for name, members in groups.items():
            found = answer[name]
            assert found["members"] == members
            assert (found["rank"], found["size"]) == (members.index(rank), len(members))
            assert found["sum"] == [sum(2.0**member for member in members)] * 2
            assert found["last"] == members[-1]
        assert len(answer["counts"]) == 3


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "launcher", [lambda: mpirun("-np", "4"), lambda: torchrun("--nproc_per_node=4")], ids=["mpi", "torch"]
)
def test_parts_of_a_group_exchange_among_themselves(launcher: Callable[[], list[str]], tmp_path: Path) -> None:
    job = start([*launcher(), sys.executable, str(SPLITTER), str(tmp_path)])
    assert_exchanged_in_parts(finish(job, tmp_path, 100))


def test_one_rank_per_frame_is_data_parallelism() -> None:
    def look(group: Group) -> tuple[bool, int, int]:
        mesh = Mesh.of(group)
        return mesh.data is mesh.world is group, mesh.frame.size, mesh.frame.rank

    assert on_ranks(3, look) == [(True, 1, 0)] * 3


@pytest.mark.parametrize("ranks_per_frame", [0, -1, 2, 4])
def test_ranks_that_cannot_be_dealt_out_are_refused(ranks_per_frame: int) -> None:
    def look(group: Group) -> str:
        with pytest.raises(UserError, match="3 ranks cannot be divided") as caught:
            Mesh.of(group, ranks_per_frame)
        return caught.value.remedy

    assert on_ranks(3, look) == ["choose one of 1, 3, or another number of ranks"] * 3


def test_a_single_process_is_its_own_parts() -> None:
    world = SoloGroup(WorkerContext("alone", 0, 1, 0, 1))
    part = world.split(7)
    assert (part.rank, part.size, part.world) == (0, 1, world)
    assert part.progress is world.progress


def seen(inside: str, **counts: int) -> Seen:
    return Seen(0.0, counts=counts, inside=inside)


def test_who_is_waited_for_is_found_through_several_groups() -> None:
    """Ranks 0 and 1 share a frame, 2 and 3 another. Rank 3 works; rank 2 waits for it, all else wait for rank 2."""
    ranks = [
        seen("world", world=5, a=9),
        seen("world", world=5, a=9),
        seen("b", world=4, b=9),
        seen("", world=4, b=8),
    ]
    assert awaited(ranks, 0) == [3]
    assert awaited(ranks, 2) == [3]


def test_a_rank_in_an_earlier_exchange_that_all_have_left_is_the_one() -> None:
    ranks = [seen("world", world=5), seen("world", world=4), seen("world", world=5)]
    assert awaited(ranks, 0) == [1]


def test_ranks_that_wait_for_each_other_in_different_groups_end() -> None:
    ranks = [seen("a", a=2, b=1), seen("b", a=1, b=2)]
    assert awaited(ranks, 0) == []
