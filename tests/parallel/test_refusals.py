"""Processes that cannot form the group they should: an error in words, soon, and no file touched."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from jobs import Outcome, quiet_port, run, torchrun

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]


def run_rank(folder: Path, **variables: str) -> Outcome:
    """One process that believes to be a rank, without any launcher."""
    return run([], folder, "--steps", "1", LOCKSTEP_TIMEOUT="2", **variables)


def test_copies_that_each_see_a_world_of_one(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    outcome = run_rank(tmp_path, PMI_RANK="1", PMI_SIZE="2")
    assert outcome.code == 2
    assert "rank 1 of 2" in outcome.text
    assert "sees rank 0 of 1" in outcome.text
    assert outcome.left_no_file


def test_a_wrong_meeting_address(tmp_path: Path) -> None:
    outcome = run_rank(tmp_path, RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="9")
    assert outcome.code == 2
    assert "127.0.0.1:9" in outcome.text
    assert "rank 1 of 2" in outcome.text
    assert outcome.seconds < 40  # two to wait; the rest is for loading torch on a busy machine
    assert outcome.left_no_file


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = run_rank(tmp_path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert outcome.code == 2
    assert "cannot open its meeting point" in outcome.text
    assert f"127.0.0.1:{port}" in outcome.text
    assert outcome.left_no_file


def test_a_rank_that_never_starts(tmp_path: Path) -> None:
    port = str(quiet_port())
    outcome = run_rank(tmp_path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert outcome.code == 2
    assert "rank 0 of 2 waited 2 s for ranks [1]" in outcome.text
    assert outcome.seconds < 40  # two to wait; the rest is for loading torch on a busy machine
    assert outcome.left_no_file


def test_a_rank_that_dies_at_the_start(tmp_path: Path) -> None:
    outcome = run(torchrun(), tmp_path, "--fault", "start", "--on", "1", LOCKSTEP_TIMEOUT="3")
    assert outcome.code != 0
    assert outcome.left_no_file


def test_a_batch_script_is_not_a_task_of_srun(tmp_path: Path) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    outcome = run_rank(tmp_path, **variables)
    assert outcome.code == 0
    assert outcome.rank(0)["launcher"] == "alone"
