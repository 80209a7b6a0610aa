"""Faults in a real training: the whole job ends in time and says who and when; nothing is left but a whole checkpoint.

Two ranks and a telling selection by default. LOCKSTEP_FAULTS=all tries every fault in every place on the first, the
second and the last of three ranks; `make faults` does so and writes docs/faults.md.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import slurm
from copper import train_on_threads, write_copper
from fault_rows import keep_row
from jobs import ALL, ROOT, Outcome, dp, environment, finish, mpirun, quiet_port, run_in, start, torchrun

from lockstep.checkpoint.find import load_checkpoint

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]

TIMEOUT = 5.0
# Seconds that an end may take beyond the timeout: where all faults are tried they come one by one, otherwise other
# tests need the processor too.
SLACK = 10.0 if ALL else 40.0
SIZE = 3 if ALL else 2
FAULTY = Path(__file__).with_name("faulty_dp.py")
SETTINGS = {
    "training__numb_steps": 14,
    "training__disp_freq": 3,
    "training__save_freq": 5,
    "training__timeout": TIMEOUT,
}
# Step in which the fault happens, and step of the checkpoint that must be left.
STEPS = {"start": (0, None), "step": (8, 5), "saving": (10, 5), "validating": (6, 5)}


@dataclass(frozen=True)
class Case:
    launcher: str
    kind: str
    place: str
    rank: int | str

    def __str__(self) -> str:
        return f"{self.launcher}-{self.kind}-{self.place}-rank{'s' if self.rank == 'all' else self.rank}"


def everything() -> list[Case]:
    """Every fault in every place on every rank, by turns under the one launcher and the other."""
    launchers = ("mpirun", "torchrun")
    signals = ("kill", "term", "stop", "raise")
    cases = [
        Case(launchers[(k + p + rank) % 2], kind, place, rank)
        for k, kind in enumerate(signals)
        for p, place in enumerate(STEPS)
        for rank in range(3)
        # While it trains, a run saves before it ends: see `REQUESTS`.
        if kind != "term" or place == "start"
    ]
    cases += [Case(launchers[rank % 2], "twice", "step", rank) for rank in range(3)]
    return cases + [
        Case(launchers[rank % 2], kind, "step", rank) for kind in ("loss", "gradient", "read") for rank in range(3)
    ]


SELECTION = [
    Case("mpirun", "kill", "saving", 0),
    Case("mpirun", "loss", "step", 1),
    Case("torchrun", "gradient", "step", 1),
    Case("mpirun", "read", "step", 1),
    Case("torchrun", "stop", "start", 1),
    Case("torchrun", "raise", "validating", 1),
    Case("torchrun", "twice", "step", 0),
]

# Requests to stop, as schedulers make them before they end a job: to one rank, or to all.
REQUESTS = [
    Case(launcher, kind, place, rank)
    for launcher in ("mpirun", "torchrun")
    for kind, place, rank in (
        ("term", "step", 0),
        ("term", "step", 1),
        ("term", "step", "all"),
        ("term", "validating", 2),
        ("term", "saving", 0),
        ("usr1", "step", 1),
        ("usr1", "step", "all"),
        ("usr1", "saving", 2),
    )
]
SLURM_REQUESTS = [Case("srun", "term", "step", 1), Case("srun", "term", "step", "all"), Case("srun", "usr1", "step", 0)]
SOME_REQUESTS = [Case("mpirun", "term", "step", 1), Case("torchrun", "usr1", "step", "all")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with slurm(tmp_path_factory.mktemp("slurm") / "files") as configuration:
        yield configuration


def start_ranks(launcher: str, size: int) -> list[str]:
    return mpirun("-np", str(size)) if launcher == "mpirun" else torchrun(f"--nproc_per_node={size}")


def left_behind(folder: Path) -> list[str]:
    """Processes that still work in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder.resolve():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def told(outcome: Outcome, case: Case) -> str:
    """The line of the log that names the rank and the step."""
    step = r"\d+" if case.kind == "read" else str(STEPS[case.place][0])
    if case.place == "saving":
        # Training goes on while rank 0 writes: it tells where it is when it misses the other, or hears of the error.
        step = "1[0-4]"
    for line in outcome.text.splitlines():
        if "ERROR" in line and re.search(rf"\brank {case.rank}\b", line) and re.search(rf"step {step}\b", line):
            return line.partition("ERROR")[2].strip()
    pytest.fail(f"no line names rank {case.rank} and step {step}:\n{outcome.text}")


@pytest.mark.parametrize("case", everything() if ALL else SELECTION, ids=str)
def test_a_fault_ends_the_job(case: Case, tmp_path: Path) -> None:
    here = write_copper(tmp_path / "run", **SETTINGS).parent
    worker = [sys.executable, str(FAULTY), "train", "input.json"]
    fault = {"FAULT": f"{case.kind} {case.place} {case.rank}", "FAULT_FILE": str(tmp_path / "fault")}
    outcome = run_in(here, [*start_ranks(case.launcher, SIZE), *worker], LOCKSTEP_TIMEOUT="", **fault)
    seconds = time.time() - float((tmp_path / "fault").read_text())
    assert outcome.code != 0
    assert seconds < TIMEOUT + SLACK
    words = told(outcome, case)
    assert left_behind(here) == []
    expected = STEPS[case.place][1]
    if expected is None:
        assert not list(here.glob("model.ckpt*"))
        kept = "none yet"
    else:
        last = load_checkpoint(here / "model.ckpt").step
        # What was read ahead is used up first; and rank 0 may have finished what another rank was lost in.
        # A checkpoint that is being written when the job is told to end is finished.
        later = case.kind == "read" or (case.place == "saving" and (case.rank > 0 or case.kind == "term"))
        assert last >= expected if later else last == expected
        kept = f"step {last}, whole"
    keep_row(case, seconds, outcome.code, words, kept)


@pytest.mark.parametrize("case", REQUESTS if ALL else SOME_REQUESTS, ids=str)
def test_a_request_to_stop_saves_first(case: Case, tmp_path: Path) -> None:
    request_to_stop(case, start_ranks(case.launcher, SIZE), tmp_path)


@pytest.mark.skipif(not ALL, reason="Slurm is for make faults")
@pytest.mark.parametrize("case", SLURM_REQUESTS, ids=str)
def test_a_request_to_stop_saves_first_under_slurm(case: Case, cluster: str, tmp_path: Path) -> None:
    request_to_stop(case, ["srun", f"-n{SIZE}", "--overcommit"], tmp_path, SLURM_CONF=cluster)


def request_to_stop(case: Case, launcher: list[str], folder: Path, **variables: str) -> None:
    here = write_copper(folder / "run", **SETTINGS).parent
    worker = [sys.executable, str(FAULTY), "train", "input.json"]
    fault = {"FAULT": f"{case.kind} {case.place} {case.rank}", "FAULT_FILE": str(folder / "fault")}
    outcome = run_in(here, [*launcher, *worker], LOCKSTEP_TIMEOUT="", **fault, **variables)
    seconds = time.time() - float((folder / "fault").read_text())
    assert outcome.code == 143 or (case.launcher == "torchrun" and "exitcode  : 143" in outcome.text), outcome.text
    assert seconds < SLACK
    saved = load_checkpoint(here / "model.ckpt").step
    line = next(line for line in outcome.text.splitlines() if f"it has saved step {saved}, and ends" in line)
    at = STEPS[case.place][0]
    assert at <= saved <= at + 2
    assert left_behind(here) == []
    keep_row(case, seconds, 143, line.partition("WARNING")[2], f"step {saved}, whole")


@pytest.mark.skipif(not ALL, reason="Slurm is for make faults")
def test_a_cancelled_slurm_job_saves_first(cluster: str, tmp_path: Path) -> None:
    here = write_copper(tmp_path / "run", **{**SETTINGS, "training__numb_steps": 100_000}).parent
    script = tmp_path / "job.sh"
    worker = " ".join([sys.executable, "-m", "lockstep.cli.main", "train", "input.json", "-l", "train.log"])
    script.write_text(f"#!/bin/sh\nexec srun -n2 {worker}\n")
    environ = environment(SLURM_CONF=cluster, LOCKSTEP_TIMEOUT="")
    command = ["sbatch", "--parsable", "-n2", "-D", str(here), "-o", str(tmp_path / "out"), str(script)]
    job = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.strip()
    wait_until(lambda: (here / "checkpoint").exists(), 100)
    subprocess.run(["scancel", job], env=environ, check=True)
    began = time.monotonic()
    wait_until(lambda: left_behind(here) == [], 20)
    seconds = time.monotonic() - began
    saved = load_checkpoint(here / "model.ckpt").step
    log = (here / "train.log").read_text()
    line = next(line for line in log.splitlines() if f"it has saved step {saved}, and ends" in line)
    keep_row("srun-scancel-step-ranks", seconds, 143, line.partition("faults")[2], f"step {saved}, whole")


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = write_copper(tmp_path / "run", **SETTINGS).parent
    fault = {"FAULT": "term step 0", "FAULT_FILE": str(tmp_path / "fault")}
    outcome = run_in(here, [sys.executable, str(FAULTY), "train", "input.json"], **fault)
    assert outcome.code == 143
    assert load_checkpoint(here / "model.ckpt").step == 8
    monkeypatch.chdir(here)
    train_on_threads(here / "input.json", 1, restart="model.ckpt")
    whole = write_copper(tmp_path / "whole", **SETTINGS).parent
    monkeypatch.chdir(whole)
    train_on_threads(whole / "input.json", 1)
    assert (here / "lcurve.out").read_text() == (whole / "lcurve.out").read_text()


def test_the_table_in_the_docs_has_every_case() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    assert text.count("\n| ") - 2 >= 80
    for case in [*everything(), *REQUESTS, *SLURM_REQUESTS, *SLOW]:
        assert f"| {case.launcher} | {case.kind} | {case.place} | {case.rank} |" in text, "run make faults"


def test_torchrun_goes_on_from_the_last_checkpoint_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = write_copper(tmp_path / "run", **SETTINGS).parent
    # Of an earlier run, and newer by its number: not to be mistaken for one of this run.
    earlier = write_copper(tmp_path / "earlier", **{**SETTINGS, "training__numb_steps": 20}).parent
    monkeypatch.chdir(earlier)
    train_on_threads(earlier / "input.json", 1)
    (earlier / "model.ckpt-20.safetensors").rename(here / "model.ckpt-20.safetensors")
    os.utime(here / "model.ckpt-20.safetensors", (time.time() - 60,) * 2)

    worker = [sys.executable, str(FAULTY), "train", "input.json", "-l", "train.log"]
    fault = {"FAULT": "kill step 1 1", "FAULT_FILE": str(tmp_path / "fault")}
    launcher = torchrun("--nproc_per_node=2", "--max-restarts=2")
    outcome = run_in(here, [*launcher, *worker], LOCKSTEP_TIMEOUT="", **fault)
    assert outcome.code == 0, outcome.text
    log = (here / "train.log").read_text()
    assert "goes on from model.ckpt-5.safetensors" in log.partition("is gone")[2]

    whole = write_copper(tmp_path / "whole", **SETTINGS).parent
    monkeypatch.chdir(whole)
    train_on_threads(whole / "input.json", 2)
    assert (here / "lcurve.out").read_text() == (whole / "lcurve.out").read_text()
    keep_row("torchrun --max-restarts=2-kill-step-rank1", 0.0, outcome.code, "goes on from the checkpoint", "finished")


SLOW = [
    Case("mpirun", "slow", "saving", 0),
    Case("torchrun", "slow", "validating", 1),
    Case("mpirun", "slow", "start", 1),
]


@pytest.mark.parametrize("case", SLOW if ALL else SLOW[:1], ids=str)
def test_a_slow_rank_is_waited_for(case: Case, tmp_path: Path) -> None:
    """More than twice the timeout: the limit is for ranks that give no sign of life."""
    here = write_copper(tmp_path / "run", **SETTINGS).parent
    worker = [sys.executable, str(FAULTY), "train", "input.json"]
    fault = {"FAULT": f"{case.kind} {case.place} {case.rank}", "FAULT_FILE": str(tmp_path / "fault")}
    outcome = run_in(here, [*start_ranks(case.launcher, 2), *worker], LOCKSTEP_TIMEOUT="", **fault)
    assert outcome.code == 0, outcome.text
    assert load_checkpoint(here / "model.ckpt").step == 14
    lines = [line for line in outcome.text.splitlines() if "is at work in" in line]
    words = lines[0].partition("WARNING")[2] if lines else "nothing: no rank had to wait"
    keep_row(case, 12.0, outcome.code, words, "finished")


def test_a_data_folder_that_only_one_rank_has_not(tmp_path: Path) -> None:
    data = {"systems": ["train_0"], "batch_size": 1}
    here = write_copper(tmp_path / "first", training__training_data=data).parent
    there = write_copper(tmp_path / "second", training__training_data=data).parent
    (here / "train_0").symlink_to(ROOT / "examples" / "copper" / "data" / "train_0")
    ranks = [["-np", "1", "-wdir", str(place), *dp("train", "input.json")] for place in (here, there)]
    began = time.time()
    outcome = run_in(here, mpirun(*ranks[0], ":", *ranks[1]))
    assert outcome.code != 0
    line = next(line for line in outcome.text.splitlines() if "ERROR" in line and "rank 1 in step 0" in line)
    assert "train_0" in line
    assert not (here / "lcurve.out").exists()
    keep_row(
        "mpirun-data missing-start-rank1", time.time() - began, outcome.code, line.partition("ERROR")[2], "none yet"
    )


@pytest.mark.skipif(not ALL, reason="the toy worker tries the same, see test_refusals.py")
@pytest.mark.parametrize("mistake", ["a port in use", "a wrong address", "a rank that never starts"])
def test_ranks_that_cannot_meet(mistake: str, tmp_path: Path) -> None:
    write_copper(tmp_path)
    with socket.create_server(("", 0)) as taken:
        rank, used = {
            "a port in use": ("0", taken.getsockname()[1]),
            "a wrong address": ("1", 9),
            "a rank that never starts": ("0", quiet_port()),
        }[mistake]
        variables = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(used)}
        began = time.time()
        outcome = run_in(tmp_path, dp("train", "input.json"), LOCKSTEP_TIMEOUT=str(TIMEOUT), **variables)
    seconds = time.time() - began
    assert outcome.code == 2
    assert seconds < TIMEOUT + SLACK
    line = next(line for line in outcome.text.splitlines() if f"rank {rank}" in line)
    assert [path.name for path in tmp_path.iterdir()] == ["input.json"]
    keep_row(f"no launcher-{mistake}-meeting-rank{rank}", seconds, outcome.code, line, "no file touched")


@pytest.mark.skipif(not ALL, reason="takes half a minute")
def test_a_job_that_was_suspended_goes_on(tmp_path: Path) -> None:
    """Longer than the timeout; as with Ctrl-Z, or by a scheduler that makes room for another job."""
    settings = {**SETTINGS, "training__numb_steps": 1000, "training__save_freq": 1000, "training__disp_freq": 50}
    here = write_copper(tmp_path, **settings).parent
    job = start([*mpirun(), *dp("train", "input.json")], here, LOCKSTEP_TIMEOUT="3")
    curve = here / "lcurve.out"
    while not curve.exists() or len(curve.read_text().splitlines()) < 4:
        assert job.poll() is None
        time.sleep(0.1)
    workers = workers_in(here)
    assert len(workers) == 2
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for worker in workers:
            os.kill(worker, number)
        time.sleep(8 if number == signal.SIGSTOP else 0)
    outcome = finish(job, here, 120)
    assert outcome.code == 0, outcome.text
    keep_row("mpirun-all suspended-step-ranks", 8.0, outcome.code, "goes on when the job does", "finished")


def workers_in(folder: Path) -> list[int]:
    """The ranks that work in `folder`; not the launcher, nor the ranks' witnesses, which are forks of them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (entry / "cwd").resolve() == folder.resolve() and words[1].endswith(b"/dp"):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    return [process for process, parent in parents.items() if parent not in parents]
