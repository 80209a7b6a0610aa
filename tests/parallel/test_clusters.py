"""Two hosts under torchrun, and a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import slurm, two_hosts
from jobs import TOY, done_by_the_trainer, environment, finish, processes_of, run, start, torchrun

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]


@done_by_the_trainer
def test_torchrun_on_two_hosts(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        jobs = []
        for node, on_host in enumerate(hosts):
            options = ("--rdzv_endpoint=10.77.0.1:12321", "--nnodes=2", "--nproc_per_node=1", f"--node_rank={node}")
            toy = (sys.executable, str(TOY), str(tmp_path))
            jobs.append(start([*on_host, *torchrun(*options), *toy]))
        outcomes = [finish(job, tmp_path) for job in jobs]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].text + outcomes[1].text
    ranks = [outcomes[0].rank(r) for r in (0, 1)]
    assert ranks[0]["nodes"] == ranks[1]["nodes"] == ["host0", "host1"]
    assert [(r["local_rank"], r["local_size"]) for r in ranks] == [(0, 1), (0, 1)]
    assert ranks[0]["hash"] == ranks[1]["hash"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with slurm(tmp_path_factory.mktemp("slurm") / "files") as configuration:
        yield configuration


@done_by_the_trainer
def test_srun(cluster: str, tmp_path: Path) -> None:
    outcome = run(["srun", "-l", "-n2"], tmp_path, "--mpi-log=workers", SLURM_CONF=cluster)
    assert outcome.code == 0, outcome.text
    ranks = [outcome.rank(r) for r in (0, 1)]
    assert [(r["launcher"], r["local_rank"], r["local_size"]) for r in ranks] == [("slurm", 0, 2), ("slurm", 1, 2)]
    assert ranks[0]["hash"] == ranks[1]["hash"]
    assert "1: DEEPMD rank:1  INFO    step 5 on rank 1" in outcome.text


def test_a_batch_script_runs_the_command_once_by_itself(cluster: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    folder = tmp_path / "run"
    folder.mkdir()
    script.write_text(f"#!/bin/sh\n{sys.executable} {TOY} {folder}\n")
    command = ["sbatch", "-W", "-n2", "-o", str(tmp_path / "out"), str(script)]
    environ = environment(SLURM_CONF=cluster)
    assert subprocess.run(command, env=environ, check=False, capture_output=True, timeout=60).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0.json", "started"]
    assert '"alone"' in (folder / "rank_0.json").read_text()


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_a_fault_under_srun_ends_the_step(kind: str, cluster: str, tmp_path: Path) -> None:
    fault = ("--fault", kind, "--on", "1")
    outcome = run(["srun", "-n2"], tmp_path, *fault, SLURM_CONF=cluster, LOCKSTEP_TIMEOUT="4")
    assert outcome.code != 0
    assert any("ERROR" in line and "rank 1" in line and "step 3" in line for line in outcome.text.splitlines())
    assert processes_of(tmp_path) == []
