"""Starting a training on some number of workers, watching it, and ending it with everything it started."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UserError

OUTPUT = "output.txt"
_LOOK, _TELL, _PATIENCE = 0.1, 10.0, 10.0
_TAIL = 20
# From here on torchrun tells of its own ending, which hides why the training ended.
_NOISE = "torch/distributed/elastic/multiprocessing"


class RunFailedError(Exception):
    """A run ended with an error, after saying `tail`."""

    def __init__(self, code: int, tail: Sequence[str], output: Path) -> None:
        self.code, self.tail, self.output = code, tail, output
        super().__init__(f"ended with exit code {code}")


@dataclass(frozen=True)
class Launcher:
    """How workers are started.

    Attributes:
        local: whether all of them run on this machine.
        words: the command; `{n}` stands for the number of workers.
    """

    name: str
    local: bool
    words: tuple[str, ...]

    def command(self, workers: int, arguments: Sequence[str]) -> list[str]:
        """The command that starts `dp` with `arguments` on all workers."""
        start = [word.replace("{n}", str(workers)) for word in self.words]
        return [*start, sys.executable, "-m", "lockstep.cli.main", *arguments]


def find_launcher(name: str) -> Launcher:
    """torchrun, mpirun, or a command of the user's with `{n}` in it."""
    if name == "torchrun":
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node={n}", "--no-python")
        return Launcher(name, True, (sys.executable, *torchrun))
    if name == "mpirun":
        return Launcher(name, True, (_program(name), "-np", "{n}"))
    if "{n}" not in name:
        raise UserError(
            "no such launcher",
            where="--launcher",
            value=name,
            remedy="torchrun, mpirun, or a command with {n} for the number of workers, such as 'srun -n {n}'",
        )
    first, *rest = shlex.split(name)
    return Launcher(name, False, (_program(first), *rest))


def _program(name: str) -> str:
    # An environment's programs lie beside its Python, whether or not it has been activated.
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise UserError(
            "there is no such program on this machine",
            where="--launcher",
            value=name,
            remedy="install it (pip install mpich mpi4py gives an mpirun), or use --launcher torchrun",
        )
    return path


def worker_environment(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """The variables of a run: `threads` for each worker, 0 to divide the cores among them."""
    result = dict(environ)
    for name in ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS"):
        result.pop(name, None)
        if threads:
            result[name] = str(threads)
    if threads:
        # Otherwise a worker alone would have more loader threads than one of many.
        result.setdefault("NUM_WORKERS", str(threads))
    # Open MPI, which otherwise refuses more workers than cores.
    result.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    result.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    return result


def launch(command: Sequence[str], folder: Path, environ: Mapping[str, str], tell: Callable[[], None]) -> None:
    """Run the command in `folder` to its end; `tell` is called every few seconds.

    Raises:
        RunFailedError: it ended with an error.
    """
    output = folder / OUTPUT
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environ), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = _watch(process, tell)
        finally:
            _end(process)
    if code != 0:
        raise RunFailedError(code, last_words(output), output)


def last_words(output: Path) -> list[str]:
    """The end of what a run said, without what its launcher said about it."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    end = next((number for number, line in enumerate(lines) if _NOISE in line and number), len(lines))
    return lines[:end][-_TAIL:]


def _watch(process: subprocess.Popen[bytes], tell: Callable[[], None]) -> int:
    told = time.monotonic()
    while (code := process.poll()) is None:
        time.sleep(_LOOK)
        if time.monotonic() - told > _TELL:
            told = time.monotonic()
            tell()
    return code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of the process and of those it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
            return
