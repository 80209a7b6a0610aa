"""Ranks that never meet, under the real mpirun and torchrun: the job ends in time, in words, and by Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from copper import write_copper
from fault_rows import keep_row
from jobs import ALL, Outcome, dp, finish, mpirun, quiet_port, run_in, start, torchrun

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]

LIMIT = 3.0
# Loading the libraries on a busy machine, and the slack that better words are given.
START_UP = 100.0
NEVER = [
    ("another program", ["sleep", "1000"], {}),
    ("another way to meet", ["env", "LOCKSTEP_GROUP=torch", *dp("train", "input.json")], {"MASTER_ADDR": "127.0.0.1"}),
]


def beside(command: list[str], folder: Path, **variables: str) -> Outcome:
    """One rank that trains, and one that runs `command` instead."""
    job = mpirun("-np", "1", *dp("train", "input.json"), ":", "-np", "1", *command)
    return run_in(folder, job, limit=LIMIT + START_UP, LOCKSTEP_TIMEOUT=str(LIMIT), **variables)


@pytest.mark.parametrize(("fault", "command", "variables"), NEVER, ids=[name for name, *_ in NEVER])
def test_a_rank_that_never_comes(fault: str, command: list[str], variables: dict[str, str], tmp_path: Path) -> None:
    write_copper(tmp_path)
    if variables:
        variables = {**variables, "MASTER_PORT": str(quiet_port())}
    outcome = beside(command, tmp_path, **variables)
    assert outcome.code != 0
    assert "rank 0 of 2 did not meet the others within 3 s (hydra, mpi, " in outcome.text
    assert [path.name for path in tmp_path.iterdir()] == ["input.json"]
    line = next(line for line in outcome.text.splitlines() if "did not meet" in line)
    keep_row(f"mpirun-{fault}-meeting-rank1", outcome.seconds, outcome.code, line, "no file touched")


def test_ranks_that_carry_their_messages_by_different_means(tmp_path: Path) -> None:
    write_copper(tmp_path)
    outcome = beside(["env", "LOCKSTEP_GROUP=torch", *dp("train", "input.json")], tmp_path)
    assert outcome.code != 0
    assert "the ranks do not agree on what carries their messages: {0: 'mpi', 1: 'torch'}" in outcome.text
    assert [path.name for path in tmp_path.iterdir()] == ["input.json"]
    line = next(line for line in outcome.text.splitlines() if "do not agree" in line)
    keep_row("mpirun-another engine-meeting-rank1", outcome.seconds, outcome.code, line, "no file touched")


def test_a_rank_with_a_mistake_ends_the_others_too(tmp_path: Path) -> None:
    write_copper(tmp_path)
    outcome = beside(dp("train", "none.json"), tmp_path)
    assert outcome.code == 2
    assert outcome.text.count("dp train: error: rank 1 of 2: none.json: cannot be read") == 1
    assert "killed" not in outcome.text
    assert [path.name for path in tmp_path.iterdir()] == ["input.json"]
    line = next(line for line in outcome.text.splitlines() if "none.json" in line)
    keep_row("mpirun-an input mistake-meeting-rank1", outcome.seconds, outcome.code, line, "no file touched")


# What is wrong, changes of the input and of the environment, and what is said about it.
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "in the input": ({"training__numb_steps": "many"}, {}, "expected an integer"),
    "in a variable": ({}, {"LOCKSTEP_TIMEOUT": "soon"}, "expected a number of seconds"),
    "in the engine": ({}, {"LOCKSTEP_GROUP": "pigeon"}, "expected one of auto"),
    "in the data": ({"training__training_data": {"systems": ["nowhere"]}}, {}, "no such system"),
}
SELECTION = [(mpirun, "in the input"), (torchrun, "in the data")]
EVERYTHING = [(launcher, mistake) for launcher in (mpirun, torchrun) for mistake in MISTAKES]


@pytest.mark.parametrize(("launcher", "mistake"), EVERYTHING if ALL else SELECTION)
def test_a_mistake_that_all_ranks_make_is_told_once(
    launcher: Callable[[], list[str]], mistake: str, tmp_path: Path
) -> None:
    changes, variables, words = MISTAKES[mistake]
    write_copper(tmp_path, **changes)
    outcome = run_in(tmp_path, [*launcher(), *dp("train", "input.json")], **variables)
    assert outcome.code != 0
    assert outcome.text.count(words) == 1, outcome.text
    line = next(line for line in outcome.text.splitlines() if words in line)
    name = f"{launcher.__name__}-a mistake {mistake}-meeting-ranks"
    keep_row(name, outcome.seconds, outcome.code, line, "no file touched")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["input.json"]


def test_ctrl_c_ends_ranks_that_look_for_the_others(tmp_path: Path) -> None:
    write_copper(tmp_path)
    command = mpirun("-np", "1", *dp("train", "input.json"), ":", "-np", "1", "sleep", "1000")
    job = start(command, tmp_path, LOCKSTEP_TIMEOUT="100")
    # The witness is a fork of its rank, and the companion of that one: three when the rank is about to look.
    wait_for(lambda: len(processes_in(tmp_path)) >= 5)
    time.sleep(2)
    os.kill(job.pid, signal.SIGINT)
    outcome = finish(job, tmp_path, 20)
    assert outcome.code != 0
    wait_for(lambda: not processes_in(tmp_path))


def test_a_connection_of_an_earlier_mpirun_is_refused(tmp_path: Path) -> None:
    write_copper(tmp_path)
    left = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "0"}
    outcome = run_in(tmp_path, ["sh", "-c", '"$@" </dev/null', "sh", *dp("train", "input.json")], **left)
    assert outcome.code == 2
    assert "environment variable PMI_FD = '0': it is not a connection to mpirun" in outcome.text
    assert outcome.text.count("\n") == 2


def wait_for(condition: Callable[[], object], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


def processes_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
