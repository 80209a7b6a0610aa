"""A job that is killed at random moments and submitted again by the same command ends as if never disturbed.

Four kills under mpirun by default; with LOCKSTEP_FAULTS=all, as `make faults` sets it, fifty, and twenty by torchrun.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch
from fault_rows import keep_row
from jobs import ALL, finish, mpirun, run_in, start, torchrun

from lockstep.checkpoint.find import load_checkpoint
from runs import SLOW_STEPS, tiny_input, tiny_system, write_input

COMMAND = ("train", "input.json", "--restart", "auto", "-l", "train.log")
PROGRAM = "import sys\nfrom lockstep.cli.main import main\nsys.exit(main())"
JOBS = [(mpirun, 50), (torchrun, 20)] if ALL else [(mpirun, 4)]
END = 900.0
"""Seconds within which the job must end, on a busy machine too."""


def command(launcher: Callable[[], list[str]], prelude: str = "") -> list[str]:
    return [*launcher(), sys.executable, "-c", f"{prelude}\n{PROGRAM}", *COMMAND]


def ranks_in(folder: Path) -> list[int]:
    """The ranks that work in a folder; neither the launcher nor the ranks' witnesses, which are forks of them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (entry / "cwd").resolve() == folder and words[1:2] == [b"-c"]:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    return [process for process, parent in parents.items() if parent not in parents]


def everyone_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for(job: subprocess.Popen[str], log: Path, words: str) -> None:
    """Return when the log has these words once more, or the job has ended."""
    seen = log.read_text().count(words) if log.exists() else 0
    while words and job.poll() is None and not (log.exists() and log.read_text().count(words) > seen):
        time.sleep(0.02)


def strike(job: subprocess.Popen[str], folder: Path, dice: random.Random) -> None:
    """SIGKILL to one rank, or to all that works there, as when a node is lost; SIGTERM to one rank or the launcher."""
    number = dice.choice([signal.SIGKILL, signal.SIGTERM])
    ranks = ranks_in(folder)
    if dice.random() < 0.5 and ranks:
        targets = [dice.choice(ranks)]
    else:
        targets = everyone_in(folder) if number == signal.SIGKILL else [job.pid]
    for target in targets:
        try:
            os.kill(target, number)
        except ProcessLookupError:
            continue


@pytest.mark.parallel
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("launcher", "kills"), JOBS)
def test_a_job_that_is_killed_and_resubmitted(launcher: Callable[[], list[str]], kills: int, tmp_path: Path) -> None:
    whole, killed = (tmp_path.resolve() / name for name in ("whole", "killed"))
    for folder in (whole, killed):
        tiny_system(folder / "train", n_frames=6)
        settings = {"training__numb_steps": 50 + 20 * kills, "training__save_freq": 7, "training__disp_freq": 5}
        write_input(folder, tiny_input(**settings))
    outcome = run_in(whole, command(launcher), END)
    assert outcome.code == 0, outcome.text

    dice, began = random.Random(kills), time.monotonic()
    # While it starts, soon after its first step, or after a checkpoint: later and later, or it would never end.
    moments = cycle(["Saved model", "", "Saved model", "Start to train"])
    for words in islice(moments, kills):
        job = start(command(launcher, SLOW_STEPS), killed)
        wait_for(job, killed / "train.log", words)
        time.sleep(0.5 * dice.random())
        strike(job, killed, dice)
        finish(job, killed, END)
        wait_until_all_have_gone(killed)

    outcome = run_in(killed, command(launcher), END)
    assert outcome.code == 0, outcome.text
    assert (killed / "lcurve.out").read_bytes() == (whole / "lcurve.out").read_bytes()
    one, other = (load_checkpoint(folder).tensors for folder in (killed, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)
    gone_on = (killed / "train.log").read_text().count("Loaded model.ckpt-")
    assert gone_on >= kills // 2, "hardly any submission had something to go on from"
    assert not [path.name for path in killed.glob(".*.tmp")]
    words = f"goes on from the newest checkpoint {gone_on} times; the learning curve is that of an undisturbed run"
    name = f"{launcher.__name__}-killed {kills} times-any moment-ranks"
    keep_row(name, time.monotonic() - began, outcome.code, words, "finished")


def wait_until_all_have_gone(folder: Path) -> None:
    deadline = time.monotonic() + END
    while everyone_in(folder):
        assert time.monotonic() < deadline, everyone_in(folder)
        time.sleep(0.05)
