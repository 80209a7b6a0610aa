"""Starts the toy worker under real launchers, and tells what came of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).with_name("toy.py")
BIN = Path(sys.executable).parent
# Launchers that need a venv of their own; tests/parallel/launchers.sh makes them.
SIDE = Path(os.environ.get("LOCKSTEP_SIDE_VENVS", ROOT))


# Tests that are worth their time only where everything is to be tried: LOCKSTEP_FAULTS=all, as `make faults` does.
ALL = os.environ.get("LOCKSTEP_FAULTS") == "all"
done_by_the_trainer = pytest.mark.skipif(not ALL, reason="the real trainer does the same in test_train_*.py")


@dataclass(frozen=True)
class Outcome:
    code: int
    text: str
    seconds: float
    folder: Path

    def rank(self, number: int) -> dict[str, Any]:
        return json.loads((self.folder / f"rank_{number}.json").read_text())  # type: ignore[no-any-return]

    @property
    def left_no_file(self) -> bool:
        return not any(self.folder.iterdir())


def environment(**changes: str) -> dict[str, str]:
    """This environment without any launcher's variables."""
    foreign = ("PMI", "MPI_", "OMPI_", "SLURM_", "HOROVOD_", "TORCHELASTIC", "MASTER_", "LOCKSTEP_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        kept.pop(name, None)
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "LOCKSTEP_TIMEOUT": "20"} | changes


def find(*candidates: Path | str) -> str:
    """The first that exists; the test is skipped where there is none."""
    for candidate in candidates:
        path = shutil.which(str(candidate))
        if path is not None:
            return path
    pytest.skip(f"no {candidates[0]}: see tests/parallel/launchers.sh")


def start(command: list[str], cwd: Path | None = None, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str], folder: Path, limit: float = 180.0) -> Outcome:
    begin = time.monotonic()
    try:
        text, _ = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        text, _ = job.communicate()
        pytest.fail(f"the job did not end within {limit} s:\n{text}")
    return Outcome(job.returncode, text, time.monotonic() - begin, folder)


def run(launcher: list[str], folder: Path, *options: str, python: str = sys.executable, **changes: str) -> Outcome:
    """`launcher toy.py folder options`, to its end."""
    return finish(start([*launcher, python, str(TOY), str(folder), *options], **changes), folder)


def dp(*arguments: str) -> list[str]:
    """The command as a user gives it."""
    return [find(BIN / "dp"), *arguments]


def run_in(folder: Path, command: list[str], limit: float = 200.0, **changes: str) -> Outcome:
    """`command` in `folder`, to its end."""
    return finish(start(command, folder, **changes), folder, limit)


_PORTS: list[socket.socket] = []


def quiet_port() -> int:
    """A port that nobody else will have: below those that the system gives away, and not that of another test.

    A test that has asked for one holds the port beside it, for as long as its process lives.
    """
    for port in range(20_000 + os.getpid() * 26 % 8000, 32_000, 2):
        try:
            mark = socket.create_server(("127.0.0.1", port + 1))
            socket.create_server(("", port)).close()
        except OSError:
            continue
        _PORTS.append(mark)
        return port
    raise OSError("there is no free port")


def torchrun(*options: str) -> list[str]:
    return [find(BIN / "torchrun"), *(options or ("--nproc_per_node=2",)), "--no-python"]


def mpirun(*options: str) -> list[str]:
    return [find(BIN / "mpirun"), *(options or ("-np", "2"))]


def processes_of(folder: Path) -> list[int]:
    """Toy workers that still run on this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and str(TOY).encode() in words:
            found.append(int(entry.parent.name))
    return found
