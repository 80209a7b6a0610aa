"""Contexts from environment variables alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lockstep.errors import UserError
from lockstep.parallel.context import UNKNOWN, Meet
from lockstep.parallel.launchers import detect, torchrun
from lockstep.parallel.launchers.slurm import expand_nodes

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0",
    "MASTER_PORT": "12321", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
HOROVOD = {
    "HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]"}
SRUN = BATCH | {
    "SLURM_PROCID": "2", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip


def test_no_launcher_is_one_process() -> None:
    context = detect({})
    assert (context.launcher, context.rank, context.size, context.meet.kind) == ("alone", 0, 1, "nobody")


def test_torchrun_meets_at_the_store_of_its_agent_and_never_at_that_of_an_earlier_attempt() -> None:
    context = detect(TORCHRUN)
    assert (context.rank, context.size, context.local_rank, context.local_size) == (3, 4, 1, 2)
    assert context.meet == Meet("address", "node0", 12321, hosted=True, prefix="lockstep/attempt_2")
    assert context.attempt == 2
    # A store of rank 0's own is met at by nodes that count other attempts, because they came later.
    own = detect({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert own.meet == Meet("address", "node0", 12321, prefix="lockstep")


@pytest.mark.parametrize(
    ("environ", "name", "place", "meet"),
    [
        (HOROVOD, "horovodrun", (1, 4, 1, 4), Meet("http", "10.0.0.1", 4000)),
        (HYDRA, "hydra", (1, 2, 1, 2), Meet("mpi")),
        (OPENMPI, "openmpi", (2, 3, 0, 1), Meet("mpi")),
        (OPENMPI | {"MASTER_ADDR": "a", "MASTER_PORT": "5"}, "openmpi", (2, 3, 0, 1), Meet("address", "a", 5)),
        (SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "5"}, "slurm", (2, 3, 0, 1), Meet("address", "a", 5)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "hydra", (0, 2, UNKNOWN, UNKNOWN), Meet("mpi")),
    ],
)
def test_other_launchers(environ: dict[str, str], name: str, place: tuple[int, ...], meet: Meet) -> None:
    context = detect(environ)
    assert context.launcher == name
    assert (context.rank, context.size, context.local_rank, context.local_size) == place
    assert context.meet == meet


def test_ranks_of_one_slurm_step_agree_on_a_port_and_steps_of_a_job_differ() -> None:
    first, other = detect(SRUN), detect(SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert first.meet == other.meet
    assert first.meet.host == "n1"
    assert detect(SRUN | {"SLURM_STEP_ID": "2"}).meet.port != first.meet.port


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}])
def test_the_shell_of_a_batch_script_is_one_process_and_the_user_is_told(step: dict[str, str]) -> None:
    context = detect(BATCH | step)
    assert (context.launcher, context.size) == ("alone", 1)
    assert "srun" in context.remark


@pytest.mark.parametrize("outer", [HYDRA, OPENMPI, SRUN, HOROVOD])
def test_torchrun_inside_another_launcher_is_torchrun(outer: dict[str, str]) -> None:
    assert detect(outer | TORCHRUN).launcher == "torchrun"


@pytest.mark.parametrize("inner", [HYDRA, OPENMPI])
def test_mpirun_inside_a_slurm_job_is_mpirun(inner: dict[str, str]) -> None:
    assert detect(SRUN | inner).launcher in ("hydra", "openmpi")


def test_srun_that_speaks_pmi_can_meet_without_mpi() -> None:
    context = detect(SRUN | {"PMI_RANK": "2", "PMI_SIZE": "3"})
    assert context.meet == detect(SRUN).meet


def test_rank_and_size_of_the_node_do_not_hide_an_mpirun() -> None:
    exported = {"RANK": "0", "WORLD_SIZE": "1"}
    with pytest.raises(UserError, match=r"(?s)RANK, WORLD_SIZE.*hydra.*rank 1 of 2"):
        detect(HYDRA | exported)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (TORCHRUN | {"RANK": "4"}, "RANK, WORLD_SIZE"),
        (TORCHRUN | {"WORLD_SIZE": "four"}, "WORLD_SIZE = 'four'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
        (HYDRA | {"PMI_RANK": "-1"}, "PMI_RANK = '-1'"),
        (HYDRA | {"MPI_LOCALNRANKS": "3"}, "MPI_LOCALNRANKS = '3'"),
        (SRUN | {"SLURM_PROCID": "3"}, "SLURM_PROCID"),
    ],
)
def test_contradictions_are_refused_by_name(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        detect(environ)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a1,b2", ["a1", "b2"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("r[1-2]n[1-2],x", ["r1n1", "r1n2", "r2n1", "r2n2", "x"]),
        ("c[9-10]-ib", ["c9-ib", "c10-ib"]),
        ("", []),
    ],
)
def test_slurm_node_lists(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(("by_user", "expected"), [(False, True), (True, False)])
def test_threads_that_torchrun_limits_by_itself_are_told_from_the_users(by_user: bool, expected: bool) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if by_user:
        environ["OMP_NUM_THREADS"] = "1"
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    parent = subprocess.Popen(program, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"  # a process that has only just been made shows no environment yet
        seen = torchrun.set_threads_itself(TORCHRUN | {"OMP_NUM_THREADS": "1"}, parent.pid)
    finally:
        parent.communicate(b"\n")
    assert seen is expected
