"""Horovod carries the messages, under its own launcher and under others: the same training, to the last digit.

Runs where tests/parallel/launchers.sh has built Horovod.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from copper import write_copper
from jobs import ALL, SIDE, Outcome, dp, environment, find, run_in, torchrun
from test_mesh import SPLITTER, assert_exchanged_in_parts

from lockstep.errors import UserError
from lockstep.parallel import engines
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines import horovod
from lockstep.parallel.engines.horovod_meeting import slots_of

FOLDER = SIDE / ".venv-horovod" / "bin"
LAUNCHERS = {
    "horovodrun, gloo": (["horovodrun", "--gloo", "-np"], {}, "Horovod (gloo)"),
    # Open MPI 5 does not understand the options that horovodrun gives it by itself.
    "horovodrun, MPI": (
        ["horovodrun", "--mpi", "--binding-args=--bind-to none --map-by slot", "--mpi-args=--oversubscribe", "-np"],
        {},
        "Horovod (MPI)",
    ),
    "mpirun": (["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"], {}, "Horovod (MPI)"),
    "torchrun": (["torchrun", "--no-python", "--nproc_per_node"], {"LOCKSTEP_GROUP": "horovod"}, "Horovod (gloo)"),
}
SOME = list(LAUNCHERS) if ALL else ["horovodrun, gloo", "mpirun"]


def run_by(name: str, size: int, folder: Path, *arguments: str, **variables: str) -> Outcome:
    """`python arguments` on so many ranks, by Horovod's own python."""
    (program, *options), settings, _ = LAUNCHERS[name]
    find(FOLDER / "horovodrun")
    launcher = torchrun()[:1] if program == "torchrun" else [str(FOLDER / program)]
    command = [*launcher, *options, str(size), str(FOLDER / "python"), *arguments]
    variables = {"PATH": f"{FOLDER}:{environment()['PATH']}", "PRTE_ALLOW_RUN_AS_ROOT": "1", **settings, **variables}
    return run_in(folder, command, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **variables)


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find(FOLDER / "horovodrun")
    here = write_copper(tmp_path_factory.mktemp("torch")).parent
    outcome = run_in(here, [*torchrun(), *dp("train", "input.json")])
    assert outcome.code == 0, outcome.text
    return here


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SOME)
def test_the_training_is_that_of_torch(name: str, tmp_path: Path, by_torch: Path) -> None:
    write_copper(tmp_path)
    timeline = {"HOROVOD_TIMELINE": str(tmp_path / "time.json")} if name == "horovodrun, gloo" else {}
    outcome = run_by(name, 2, tmp_path, "-m", "lockstep.cli.main", "train", "input.json", "-l", "log", **timeline)
    assert outcome.code == 0, outcome.text
    assert f"exchange through {LAUNCHERS[name][2]}" in (tmp_path / "log").read_text()
    assert (tmp_path / "lcurve.out").read_text() == (by_torch / "lcurve.out").read_text()
    if timeline:
        assert json.loads((tmp_path / "time.json").read_text())
        assert "NEGOTIATE_ALLREDUCE" in (tmp_path / "time.horovod.json").read_text()


@pytest.mark.parallel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SOME)
def test_parts_of_a_group(name: str, tmp_path: Path) -> None:
    assert_exchanged_in_parts(run_by(name, 4, tmp_path, str(SPLITTER), str(tmp_path)))


def test_places_of_the_ranks_on_their_hosts() -> None:
    places = [(s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots_of(["a", "a", "b", "a"])]
    assert places == [(0, 3, 0, 2), (1, 3, 0, 1), (0, 1, 1, 2), (2, 3, 0, 1)]


@pytest.mark.parametrize(
    ("launcher", "device", "library", "expected"),
    [
        ("horovodrun", "cpu", b"", True),
        ("horovodrun", "cuda", b"", False),
        ("hydra", "cpu", b"...libmpi.so.12...", True),
        ("hydra", "cpu", b"...libmpi.so.40...", False),
        ("openmpi", "cpu", b"...libmpi.so.40...", True),
        ("torchrun", "cpu", b"...libmpi.so.12...", False),
        ("horovodrun", "cpu", None, False),
    ],
)
def test_where_it_is_used_by_itself(
    launcher: str, device: str, library: bytes | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    path = tmp_path / "mpi_lib_v2.so"
    path.write_bytes(library or b"")
    monkeypatch.setattr(horovod, "_library", lambda: None if library is None else path)
    context = WorkerContext(launcher, 0, 2)
    assert horovod.usable(context, device, {}) is expected
    assert (engines.choose(context, device, {}) == "horovod") is expected


def test_where_it_is_missing_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "_library", lambda: None)
    context = WorkerContext("torchrun", 0, 2)
    assert engines.choose(context, "cpu", {"LOCKSTEP_GROUP": "horovod"}) == "horovod"
    with pytest.raises(UserError, match="Horovod is not installed"):
        horovod.connect(context, "cpu", 1.0)
