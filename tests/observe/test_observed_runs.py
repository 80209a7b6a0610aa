"""Real trainings on two ranks, one of them slower, seen by all observers at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
import pytest
from trace_check import Slice, Tracks, read_trace

from lockstep.observe.budget import read_budget
from lockstep.phases import PHASES
from runs import dp_process, tiny_input, tiny_system, write_input

STEPS = 40
LATE = 0.02
SLOW_RANK = f"""
import os, time
from lockstep.tasks.energy.loss import EnergyLoss
late = {LATE} * int(os.environ.get("PMI_RANK") or os.environ.get("RANK") or 0)
call = EnergyLoss.__call__
EnergyLoss.__call__ = lambda self, *arguments: (time.sleep(late), call(self, *arguments))[1]
"""
PROGRAM = f"{SLOW_RANK}\nimport sys\nfrom lockstep.cli.main import main\nsys.exit(main())"
LAUNCHERS = {"mpirun": jobs.mpirun, "torchrun": jobs.torchrun}


@dataclass(frozen=True)
class Run:
    folder: Path
    text: str
    tracks: Tracks
    profiles: list[dict[str, Any]]

    def slices(self, rank: int, track: str, name: str) -> dict[int, Slice]:
        """The last such event of each step."""
        return {s.details["step"]: s for s in self.tracks[rank, track] if s.name == name and s.details["step"] > 2}


def prepare(folder: Path, **changes: Any) -> Path:
    tiny_system(folder / "train")
    tiny_system(folder / "valid", seed=5)
    valid = {"systems": ["valid"], "batch_size": 1, "numb_btch": 2}
    settings = {
        "training__validation_data": valid,
        "training__numb_steps": STEPS,
        "training__disp_freq": 10,
        "training__save_freq": 20,
        "training__tensorboard": True,
        **changes,
    }
    return write_input(folder, tiny_input(**settings))


@pytest.fixture(scope="module", params=LAUNCHERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    launcher = LAUNCHERS[request.param]()
    prepare(folder)
    command = [*launcher, sys.executable, "-c", PROGRAM, "train", "input.json", "--profile", "--timeline", "t.json"]
    environ = jobs.environment(NUM_WORKERS="1")
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(folder.glob("mpi_profile.*.json"))
    profiles = [json.loads(file.read_text()) for file in files]
    return Run(folder, done.stdout + done.stderr, read_trace(folder / "t.json"), profiles)


@pytest.mark.parallel
def test_the_timeline_has_the_activity_of_all_ranks(run: Run) -> None:
    for rank in range(2):
        names = {track for number, track in run.tracks if number == rank}
        wanted = {"data", "forward", "backward", "communication", "optimizer", "validation", "checkpoint", "output"}
        assert wanted <= names
        assert any(name.startswith("geometry (loader") for name in names)
        steps = {s.details["step"] for s in run.tracks[rank, "forward"]}
        assert steps == set(range(1, STEPS + 1))


@pytest.mark.parallel
def test_clocks_are_aligned_where_the_ranks_meet(run: Run) -> None:
    mine, other = (run.slices(rank, "communication", "MPI_Allreduce") for rank in range(2))
    apart = [abs(mine[step].ended - other[step].ended) for step in mine]
    assert statistics.median(apart) < 5_000


@pytest.mark.parallel
def test_waiting_for_the_slow_rank_is_seen_everywhere(run: Run) -> None:
    waits: Counter[int] = Counter()
    for event in run.tracks[0, "communication"]:
        if event.name == "wait for other ranks" and event.details["step"] > 2:
            waits[event.details["step"]] += event.ended - event.began
    assert statistics.median(waits.values()) > 0.6e6 * LATE
    waited = [profile["own"]["wait"] for profile in run.profiles]
    assert waited[0] > 0.6 * LATE * STEPS
    last = read_budget(run.folder / "budget.jsonl")[-1]
    assert (last["slowest"], last["fastest"]) == (1, 0)
    assert last["per_rank_wait"][0] > 0.2


@pytest.mark.parallel
def test_the_budget_is_told_at_every_display(run: Run) -> None:
    lines = read_budget(run.folder / "budget.jsonl")
    assert [line["step"] for line in lines] == [1, 10, 20, 30, 40]
    assert [line["samples"] for line in lines] == [2, 18, 20, 20, 20]
    for line in lines:
        assert sum(line["budget"].values()) == pytest.approx(1, abs=1e-3)
        assert set(line["budget"]) == set(PHASES)
    assert run.text.count("budget: data ") == len(lines)
    assert "slowest rank 1" in run.text


@pytest.mark.parallel
def test_the_profiles_count_the_same_on_both_ranks(run: Run) -> None:
    assert [profile["rank"] for profile in run.profiles] == [0, 1]
    calls = [{n: sum(t["calls"] for t in ts) for n, ts in p["routines"].items()} for p in run.profiles]
    assert calls[0] == calls[1]
    assert calls[0]["MPI_Allreduce"] >= STEPS + 5
    for profile in run.profiles:
        own = profile["own"]
        assert own["wait"] <= own["communication"] <= own["elapsed"]
        assert own["memory"] > 50


@pytest.mark.parallel
def test_tensorboard_has_the_same_numbers(run: Run) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run.folder / "log"))
    board.Reload()
    lines = read_budget(run.folder / "budget.jsonl")
    shown = {event.step: event.value for event in board.Scalars("budget/wait")}
    assert shown == pytest.approx({line["step"]: line["budget"]["wait"] for line in lines}, rel=1e-3)
    assert len(board.Scalars("train/rmse_f")) == STEPS


def test_perfetto_loads_the_timeline(run: Run) -> None:
    """Perfetto's own trace processor; see perfetto.sh."""
    folder, node = os.environ.get("LOCKSTEP_PERFETTO"), shutil.which("node")
    if not folder or not node:
        pytest.skip("LOCKSTEP_PERFETTO is not set: see tests/observe/perfetto.sh")
    ranks = (
        "select process.name, count(*), min(slice.dur) from slice "
        "join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) group by 1 order by 1"
    )
    problems = "select name from stats where severity in ('error', 'data_loss') and value > 0"
    query = Path(__file__).with_name("perfetto_query.mjs")
    command = [node, str(query), folder, str(run.folder / "t.json"), ranks, problems]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    processes, complaints = json.loads(done.stdout.splitlines()[-1])
    assert complaints == []
    assert [name.split(" (")[0] for name, _, _ in processes] == ["rank 0", "rank 1"]
    counts = [sum(len(s) for (rank, _), s in run.tracks.items() if rank == number) for number in range(2)]
    assert [count for _, count, _ in processes] == counts
    assert all(shortest >= 0 for _, _, shortest in processes)


def interrupted(folder: Path, number: signal.Signals) -> int:
    """Ends a training by a signal after a few steps; returns its exit code."""
    prepare(folder, training__numb_steps=100_000, training__tensorboard=False)
    job = dp_process("train", "input.json", "--profile", "--timeline", "t.json", cwd=folder, env={"SLURM_JOB_ID": ""})
    curve, deadline = folder / "t.json", time.monotonic() + 60
    while not (curve.exists() and curve.read_text().count('"forward", "ph": "X"') > 5) and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(number)
    job.communicate(timeout=30)
    return job.returncode


def test_a_terminated_run_leaves_profile_and_timeline(tmp_path: Path) -> None:
    assert interrupted(tmp_path, signal.SIGTERM) == 128 + signal.SIGTERM
    assert len(read_trace(tmp_path / "t.json")[0, "forward"]) > 5
    (profile,) = tmp_path.glob("mpi_profile.*.0.json")
    assert not json.loads(profile.read_text())["complete"]


def test_a_killed_run_leaves_a_timeline_that_loads(tmp_path: Path) -> None:
    assert interrupted(tmp_path, signal.SIGKILL) == -signal.SIGKILL
    assert len(read_trace(tmp_path / "t.json", closed=False)[0, "forward"]) > 5
