"""`dp train` under the real launchers, by the command lines that users type: one run, its files, its log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import slurm, two_hosts
from copper import curve, largest_difference, weights, write_copper
from jobs import SIDE, Outcome, dp, environment, find, finish, mpirun, run_in, start, torchrun

from runs import dp as dp_here

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]

FILES = {
    "budget.jsonl",
    "checkpoint",
    "input.json",
    "lcurve.out",
    "model.ckpt-12.safetensors",
    "model.ckpt-6.safetensors",
    "model.ckpt.safetensors",
    "out.json",
}
THREADS = {
    "OMP_NUM_THREADS": "1",
    "TF_INTRA_OP_PARALLELISM_THREADS": "0",
    "TF_INTER_OP_PARALLELISM_THREADS": "0",
}
SUMMARY = [
    "---Summary of the training---------------------------------------",
    "distributed",
    "world size:           2",
    "my rank:              RANK",
    "node list:            [",
    "running on:           ",
    "computing device:     cpu:0",
    "CUDA_VISIBLE_DEVICES: unset",
    "Count of visible GPU: 0",
    "num_intra_threads:    1",
    "num_inter_threads:    1",
    "-----------------------------------------------------------------",
]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def succeeded(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome.text
    return outcome


def assert_summary(lines: list[str], rank: int) -> None:
    start = next(i for i, line in enumerate(lines) if line.endswith(SUMMARY[0]))
    for line, expected in zip(lines[start:], SUMMARY, strict=False):
        assert expected.replace("RANK", str(rank)) in line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def by_workers(folder: Path) -> Outcome:
    """The longest of the command lines, each worker with a log of its own."""
    here = write_copper(folder / "workers").parent
    launcher = mpirun("-l", "-launcher=fork", "-hosts=localhost", "-np", "2")
    return succeeded(run_in(here, [*launcher, *dp("train", "-l", "mpi.log", "-m", "workers", "input.json")], **THREADS))


@pytest.fixture(scope="module")
def collected(folder: Path) -> Outcome:
    here = write_copper(folder / "collected").parent
    command = [*torchrun(), *dp("--pt", "train", "-m", "collect", "-l", "train.log", "input.json")]
    return succeeded(run_in(here, command))


@pytest.fixture(scope="module")
def by_master(folder: Path) -> Outcome:
    """Two ranks in two working folders, to see who writes."""
    here = write_copper(folder / "master" / "first").parent
    there = write_copper(folder / "master" / "second").parent
    command = dp("train", "input.json", "-l", "train.log")
    ranks = (["-np", "1", "-wdir", str(place), *command] for place in (here, there))
    first, second = ranks
    return succeeded(run_in(here, [*mpirun(*first, ":", *second)]))


def test_each_worker_logs_for_itself_and_prefixes_stay_whole(by_workers: Outcome) -> None:
    lines = by_workers.text.splitlines()
    for line in lines:
        assert re.match(r"\[([01])\] DEEPMD rank:\1  (INFO|WARNING) ", line), line
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        assert_summary(own, rank)
        assert sum("training time" in line for line in own) == 5
        text = (by_workers.folder / f"mpi_{rank}.log").read_text()
        assert_summary(text.splitlines(), rank)
        assert text.count("training time") == 5
    assert files(by_workers.folder) == FILES | {"mpi_0.log", "mpi_1.log"}


def test_collected_records_are_in_order_of_time_with_their_rank(collected: Outcome) -> None:
    lines = (collected.folder / "train.log").read_text().splitlines()
    stamps = [line[1:24] for line in lines]
    assert stamps == sorted(stamps)
    for rank in (0, 1):
        own = [line for line in lines if f"DEEPMD rank:{rank}  " in line]
        assert_summary(own, rank)
        assert sum("training time" in line for line in own) == 5
    assert len(lines) == sum(f"DEEPMD rank:{rank}  " in line for line in lines for rank in (0, 1))
    assert sum("rank:1" in line for line in collected.text.splitlines()) > 10
    assert files(collected.folder) == FILES | {"train.log"}


def test_rank_0_alone_logs_and_writes(by_master: Outcome, folder: Path) -> None:
    assert by_master.text.count("world size:           2") == 1
    assert "DEEPMD rank:" not in by_master.text
    assert files(folder / "master" / "first") == FILES | {"train.log"}
    assert files(folder / "master" / "second") == {"input.json"}
    assert "finished training" in (folder / "master" / "first" / "train.log").read_text()


def test_whoever_starts_the_ranks_they_train_the_same_model(
    by_workers: Outcome, collected: Outcome, by_master: Outcome
) -> None:
    reference = weights(by_workers.folder)
    for outcome in (collected, by_master):
        assert largest_difference(weights(outcome.folder), reference) < 1e-12
        assert (outcome.folder / "lcurve.out").read_text() == (by_workers.folder / "lcurve.out").read_text()


def test_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in THREADS.items():
        monkeypatch.setenv(name, value)
    write_copper(tmp_path)
    assert dp_here("train", "input.json", "-l", "train.log") == 0
    assert files(tmp_path) == FILES | {"train.log"}
    text = (tmp_path / "train.log").read_text()
    assert " serial\n" in text
    assert "distributed" not in text
    assert "num_intra_threads:    1\n" in text


def test_torchrun_without_a_number_of_workers_is_one_process(tmp_path: Path) -> None:
    write_copper(tmp_path, training__numb_steps=2)
    outcome = succeeded(run_in(tmp_path, [*torchrun("--nnodes=1"), *dp("--pt", "train", "input.json")]))
    assert "DEEPMD INFO    serial" in outcome.text
    assert "= 1 per micro-batch x 1 accumulated x 1 workers" in outcome.text


@pytest.mark.parametrize("variables", [{"PMI_RANK": "1", "PMI_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "2"}])
def test_processes_that_cannot_meet_touch_no_file(variables: dict[str, str], tmp_path: Path) -> None:
    write_copper(tmp_path)
    (tmp_path / "lcurve.out").write_text("of an earlier run")
    outcome = run_in(tmp_path, dp("train", "input.json", "-l", "train.log"), LOCKSTEP_TIMEOUT="3", **variables)
    assert outcome.code == 2
    assert "error" in outcome.text
    assert files(tmp_path) == {"input.json", "lcurve.out"}
    assert (tmp_path / "lcurve.out").read_text() == "of an earlier run"


def test_ranks_with_different_input_files_stop(tmp_path: Path) -> None:
    here = write_copper(tmp_path / "first").parent
    there = write_copper(tmp_path / "second", training__numb_steps=13).parent
    ranks = [["-np", "1", "-wdir", str(place), *dp("train", "input.json")] for place in (here, there)]
    outcome = run_in(here, mpirun(*ranks[0], ":", *ranks[1]))
    assert outcome.code != 0
    assert "input file: not the same on all ranks: what rank 1 found differs" in outcome.text
    assert files(here) == {"input.json"}


# What follows runs where the launcher is there: see tests/parallel/launchers.sh.


def test_horovodrun(tmp_path: Path, by_workers: Outcome) -> None:
    """From a venv of its own; the workers are those of this one, which has no Horovod."""
    launcher = find(SIDE / ".venv-horovod" / "bin" / "horovodrun")
    write_copper(tmp_path)
    outcome = succeeded(
        run_in(tmp_path, [launcher, "--gloo", "-np", "2", *dp("train", "--mpi-log=workers", "input.json")])
    )
    lines = [line for line in outcome.text.splitlines() if "DEEPMD" in line]
    assert all(re.match(r"\[([01])\]<stderr>:DEEPMD rank:\1  ", line) for line in lines)
    assert largest_difference(weights(tmp_path), weights(by_workers.folder)) < 1e-12


@pytest.mark.parametrize(
    ("name", "options"), [("openmpi", ["--allow-run-as-root", "--oversubscribe"]), ("intelmpi", [])]
)
def test_other_mpis(name: str, options: list[str], tmp_path: Path, by_workers: Outcome) -> None:
    """With an mpi4py that uses this MPI, in a venv of its own."""
    bin_folder = SIDE / f".venv-{name}" / "bin"
    launcher = [find(bin_folder / "mpirun"), *options, "-np", "2"]
    worker = [str(bin_folder / "python"), "-m", "lockstep.cli.main", "train", "input.json", "-l", "train.log"]
    write_copper(tmp_path)
    path = f"{bin_folder}:{environment()['PATH']}"
    succeeded(run_in(tmp_path, [*launcher, *worker], PATH=path))
    assert "world size:           2" in (tmp_path / "train.log").read_text()
    assert largest_difference(weights(tmp_path), weights(by_workers.folder)) < 1e-12


def test_srun(tmp_path: Path, by_workers: Outcome) -> None:
    with slurm(tmp_path / "slurm") as configuration:
        here = write_copper(tmp_path / "run").parent
        outcome = succeeded(run_in(here, ["srun", "-n2", *dp("train", "input.json")], SLURM_CONF=configuration))
    assert "world size:           2" in outcome.text
    assert largest_difference(weights(here), weights(by_workers.folder)) < 1e-12


def test_two_hosts(tmp_path: Path, by_workers: Outcome) -> None:
    file = write_copper(tmp_path)
    with two_hosts() as hosts:
        jobs = []
        for node, on_host in enumerate(hosts):
            options = ["--rdzv_endpoint=10.77.0.1:12321", "--nnodes=2", "--nproc_per_node=1", f"--node_rank={node}"]
            launcher = [*torchrun(*options)[:-1], "--no_python"]
            jobs.append(start([*on_host, *launcher, *dp("--pt", "train", str(file))], tmp_path))
        outcomes = [succeeded(finish(job, tmp_path, 120)) for job in jobs]
    assert "node list:            ['host0', 'host1']" in outcomes[0].text
    assert len(curve(tmp_path)) == 5
    assert largest_difference(weights(tmp_path), weights(by_workers.folder)) < 1e-12
