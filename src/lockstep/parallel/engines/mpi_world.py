"""MPI through mpi4py: loaded on purpose only, and checked against what the launcher promised."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext

LAUNCHERS = ("hydra", "openmpi")
_INSTALL = "pip install 'lockstep-dp[mpi]'; or set MASTER_ADDR and MASTER_PORT to a host and free port of rank 0"


def is_installed() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def load(context: WorkerContext, engine: str) -> Any:
    """The `mpi4py.MPI` module, initialised, with a world of exactly the size the launcher promised.

    All its ranks must have chosen the same `engine`.
    """
    try:
        import mpi4py

        # A rank that ends because of an error must not wait for the others in MPI_Finalize.
        mpi4py.rc.finalize = False
        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:
        raise UserError(
            f"mpirun started {context.size} ranks, but MPI cannot be used: {problem}",
            where="mpi4py",
            remedy=_INSTALL,
        ) from problem
    # Asked before MPI starts: under Open MPI's mpirun, MPICH does not start alone but aborts the process.
    if context.launcher == "openmpi" and MPI.get_vendor()[0] != "Open MPI":
        raise UserError(_mismatch(context, MPI, "is another"), where="mpirun", remedy=_remedy())
    if not MPI.Is_initialized():
        refuse_left_connection(os.environ)
        MPI.Init_thread()
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if (rank, size) != (context.rank, context.size):
        raise UserError(_mismatch(context, MPI, f"sees rank {rank} of {size}"), where="mpirun", remedy=_remedy())
    refuse_other_engines(MPI.COMM_WORLD.allgather(engine))
    return MPI


def refuse_other_engines(engines: Sequence[str]) -> None:
    """Ranks that carry their messages by different means would wait for each other for ever."""
    if len(set(engines)) > 1:
        raise UserError(
            f"the ranks do not agree on what carries their messages: {dict(enumerate(engines))}",
            where="environment variable LOCKSTEP_GROUP",
            remedy="set it to the same on all ranks, or on none, and give all of them the same installation",
        )


def refuse_left_connection(environ: Mapping[str, str]) -> None:
    """PMI_FD names the connection to mpirun. Where it is not one, MPI would abort the process, or wait for ever."""
    text = environ.get("PMI_FD")
    if text is None:
        return
    try:
        with socket.socket(fileno=os.dup(int(text))) as connection:
            connection.getpeername()
    except (OSError, ValueError, OverflowError) as problem:
        raise UserError(
            "it is not a connection to mpirun: variables of an earlier mpirun were left in the environment",
            where="environment variable PMI_FD",
            value=text,
            remedy="start with mpirun, or unset PMI_FD, PMI_RANK and PMI_SIZE to train in one process",
        ) from problem


def finalize_at_exit() -> None:
    """The orderly end of MPI, if it was used: with the process, because MPI cannot be started a second time."""
    atexit.unregister(_finalize)
    atexit.register(_finalize)


def _finalize() -> None:
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.Finalize()


def _mismatch(context: WorkerContext, MPI: Any, finding: str) -> str:
    library = MPI.Get_library_version().splitlines()[0].strip("\0").split(",")[0]
    return (
        f"it started this process as rank {context.rank} of {context.size}, but the MPI library of mpi4py "
        f"({' '.join(library.split())}) {finding}: this mpirun belongs to another MPI than mpi4py"
    )


def _remedy() -> str:
    launcher = _own_launcher()
    start = f"start with {launcher}" if launcher else "start with the mpirun of the MPI that mpi4py uses"
    return f"{start}; or set LOCKSTEP_GROUP=torch, MASTER_ADDR and MASTER_PORT to do without MPI"


def _own_launcher() -> str | None:
    """The mpirun or mpiexec beside the MPI library that this process has loaded."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for library in dict.fromkeys(re.findall(r"/\S*/libmpi[\w.\-]*\.so\S*", maps)):
        for folder in Path(library).parents:
            for name in ("mpirun", "mpiexec"):
                if (folder / "bin" / name).exists():
                    return str(folder / "bin" / name)
    return None
