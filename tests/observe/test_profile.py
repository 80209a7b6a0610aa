from __future__ import annotations

import json
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from thread_group import on_ranks

from lockstep.errors import UserError
from lockstep.observe.profile import Profile
from lockstep.observe.wishes import find_wishes
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group
from lockstep.parallel.launchers import alone

LATE = 0.08


def profiled(folder: Path, size: int, work: Any) -> list[dict[str, Any]]:
    def all_of_it(group: Group) -> None:
        with Profile(group, "7", folder):
            work(group)

    on_ranks(size, all_of_it)
    return [json.loads((folder / f"mpi_profile.7.{rank}.json").read_text()) for rank in range(size)]


def total(record: dict[str, Any], routine: str, quantity: str) -> float:
    return sum(tally[quantity] for tally in record["routines"][routine])


def test_every_exchange_is_counted_with_its_size(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        group.all_reduce(torch.zeros(10, dtype=torch.float64))
        group.all_reduce(torch.zeros(9, dtype=torch.float64))
        group.all_reduce(torch.zeros(1000, dtype=torch.float32))
        group.broadcast(torch.zeros(3, dtype=torch.float64))
        group.barrier()
        assert group.all_gather_object("abc") == ["abc", "abc"]
        assert group.sum(torch.ones(2)).tolist() == [2.0, 2.0]

    for record in profiled(tmp_path, 2, work):
        # By powers of two: 16 bytes (2 + 2 numbers); 72 and 80; 4000.
        sizes = [(tally["calls"], tally["bytes"]) for tally in record["routines"]["MPI_Allreduce"]]
        assert sizes == [(1, 16), (2, 152), (1, 4000)]
        assert total(record, "MPI_Bcast", "bytes") == 24
        assert total(record, "MPI_Barrier", "calls") == 1
        assert total(record, "MPI_Allgather", "calls") == 1
        assert record["complete"]
        assert len(record["ranks"]) == 2


def average(group: Group) -> None:
    net = torch.nn.Linear(5, 5)
    averager = GradientAverager(net.parameters(), group)
    for _ in range(2):
        averager.zero()
        averager.average(1.0)
        time.sleep(LATE * group.rank)


EXCHANGES = {
    "gradients": ("MPI_Allreduce", average),
    "all_reduce": ("MPI_Allreduce", lambda group: group.all_reduce(torch.zeros(1000))),
    "sum": ("MPI_Allreduce", lambda group: group.sum(torch.zeros(10))),
    "broadcast": ("MPI_Bcast", lambda group: group.broadcast(torch.zeros(10))),
    "all_gather_object": ("MPI_Allgather", lambda group: group.all_gather_object(1)),
    "barrier": ("MPI_Barrier", lambda group: group.barrier()),
}


@pytest.mark.parametrize("kind", EXCHANGES)
def test_waiting_for_a_late_rank_is_told_apart_from_transfer(kind: str, tmp_path: Path) -> None:
    routine, exchange = EXCHANGES[kind]
    # Whoever else needs the processor may hold up either rank: it must come out right once.
    assert any(told_apart(routine, exchange, tmp_path) for _ in range(10))


def told_apart(routine: str, exchange: Callable[[Group], Any], folder: Path) -> bool:
    def work(group: Group) -> None:
        group.barrier()
        time.sleep(LATE * group.rank)
        exchange(group)

    on_time, late = profiled(folder, 2, work)
    transfer = total(on_time, routine, "seconds") - total(on_time, routine, "wait")
    own_wait = 0.0 if routine == "MPI_Barrier" else total(late, routine, "wait")
    return total(on_time, routine, "wait") > 0.6 * LATE and transfer < 0.5 * LATE and own_wait < 0.5 * LATE


def test_the_text_has_the_shape_of_mpitrace(tmp_path: Path) -> None:
    profiled(tmp_path, 2, lambda group: group.all_reduce(torch.zeros(100)))
    text = (tmp_path / "mpi_profile.7.1").read_text()
    lines = text.splitlines()
    assert lines[0] == "Data for MPI rank 1 of 2:"
    row = next(line for line in lines if line.startswith("MPI_Allreduce")).split()
    assert row[:3] == ["MPI_Allreduce", "1", "400.0"]
    assert float(row[3]) >= 0
    for sign in (
        "had the maximum communication time.",
        "had the minimum communication time.",
        "total communication time = ",
        "total elapsed time = ",
        "user cpu time = ",
        "system time = ",
        "max resident set size = ",
        "reported the largest memory utilization : ",
        "Message size distributions:",
    ):
        assert sign in text


def test_an_error_still_leaves_the_profile_of_this_rank(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        with Profile(group, "8", tmp_path):
            group.barrier()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        on_ranks(2, work)
    record = json.loads((tmp_path / "mpi_profile.8.0.json").read_text())
    assert not record["complete"]
    assert total(record, "MPI_Barrier", "calls") == 1
    assert "ended early" in (tmp_path / "mpi_profile.8.0").read_text()


def test_a_rank_that_is_ended_from_another_thread_writes_its_profile_first(tmp_path: Path) -> None:
    program = f"""
import pathlib, threading, time
from lockstep.observe.profile import Profile
from lockstep.parallel.launchers import alone
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.watch.watch import exit_now
group = SoloGroup(alone.detect({{}}))
with Profile(group, "9", pathlib.Path({str(tmp_path)!r})):
    group.barrier()
    threading.Thread(target=exit_now, args=(3,)).start()
    time.sleep(20)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 3
    record = json.loads((tmp_path / "mpi_profile.9.0.json").read_text())
    assert not record["complete"]
    assert total(record, "MPI_Barrier", "calls") == 1


def test_to_count_an_exchange_costs_microseconds(tmp_path: Path) -> None:
    group, tensor = SoloGroup(alone.detect({})), torch.zeros(100_000)
    profile = Profile(group, "10", tmp_path)
    best = min(timeit.repeat(lambda: profile.count("MPI_Allreduce", tensor, 1.0, 0.1, 1.5), number=1000, repeat=5))
    assert best / 1000 < 1e-3  # typically 5e-6


class Settings:
    profiling = True
    profiling_file = "from_input.json"


@pytest.mark.parametrize(
    ("option", "environ", "profiling", "wanted"),
    [
        ("a.json", {"HOROVOD_TIMELINE": "b.json"}, True, "a.json"),
        (None, {"HOROVOD_TIMELINE": "b.json"}, True, "b.json"),
        (None, {}, True, "from_input.json"),
        (None, {}, False, None),
    ],
)
def test_the_timeline_is_asked_for_in_three_ways(
    option: str | None, environ: dict[str, str], profiling: bool, wanted: str | None
) -> None:
    settings: Any = Settings()
    settings.profiling = profiling
    assert find_wishes(False, option, settings, environ).timeline == wanted


def test_the_profile_is_asked_for_by_option_or_variable() -> None:
    settings: Any = Settings()
    assert find_wishes(True, None, settings, {}).profile
    assert find_wishes(False, None, settings, {"DP_PROFILE": "1"}).profile
    assert not find_wishes(False, None, settings, {"DP_PROFILE": "0"}).profile
    assert find_wishes(False, None, settings, {"SLURM_JOB_ID": "55"}).job == "55"
    with pytest.raises(UserError, match="DP_PROFILE = 'maybe'"):
        find_wishes(False, None, settings, {"DP_PROFILE": "maybe"})
