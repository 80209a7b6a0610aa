"""Faults in a step, under the real launchers: the whole job ends in time, names the rank and the step, leaves nobody.

LOCKSTEP_FAULTS=all tries every fault on every rank; by default a selection, to be quick.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import ALL, done_by_the_trainer, mpirun, processes_of, run, torchrun

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]

TIMEOUT = 4.0
START_UP = 100.0
# What the real trainer does not try by default, see test_train_faults.py.
SELECTION = {
    ("mpirun", "kill", 1),
    ("mpirun", "stop", 0),
    ("mpirun", "hang", 1),
}
# SIGTERM is no fault but a request, which only a trainer can grant.
EVERYTHING = {
    (launcher, kind, rank)
    for launcher in ("mpirun", "torchrun")
    for kind in ("raise", "user", "kill", "int", "stop", "hang")
    for rank in (0, 1)
}
CASES = sorted(EVERYTHING if ALL else SELECTION)


@pytest.mark.parametrize(("launcher", "kind", "rank"), CASES)
def test_a_fault_on_one_rank_ends_the_job(launcher: str, kind: str, rank: int, tmp_path: Path) -> None:
    command = {"mpirun": mpirun, "torchrun": torchrun}[launcher]()
    fault = ("--fault", kind, "--on", str(rank), "--at", "3")
    outcome = run(command, tmp_path, *fault, LOCKSTEP_TIMEOUT=str(TIMEOUT))
    assert outcome.code != 0
    assert outcome.seconds < START_UP + TIMEOUT + 10
    told = [line for line in outcome.text.splitlines() if "ERROR" in line and f"rank {rank}" in line]
    assert any("step 3 (training)" in line for line in told), outcome.text
    assert processes_of(tmp_path) == []
    assert not list(tmp_path.glob("rank_*.json"))


@done_by_the_trainer
def test_torchrun_starts_again_after_a_fault(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    launcher = torchrun("--nproc_per_node=2", "--max-restarts=1")
    fault = ("--fault", "kill", "--on", "1", "--at", "3", "--attempts", "1")
    outcome = run(launcher, tmp_path, *fault, "--log-path", str(log), LOCKSTEP_TIMEOUT=str(TIMEOUT))
    assert outcome.code == 0, outcome.text
    assert outcome.rank(0)["hash"] == outcome.rank(1)["hash"]
    text = log.read_text()
    assert "is gone" in text
    assert "step 5" in text.partition("is gone")[2]
