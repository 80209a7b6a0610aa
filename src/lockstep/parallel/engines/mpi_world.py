"""MPI through mpi4py: loaded on purpose only, and checked against what the launcher promised."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext

_INSTALL = "pip install 'lockstep-dp[mpi]'; or set MASTER_ADDR and MASTER_PORT to a host and free port of rank 0"


def is_installed() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def load(context: WorkerContext) -> Any:
    """The `mpi4py.MPI` module, initialised, with a world of exactly the size the launcher promised."""
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
        MPI.Init_thread()
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if (rank, size) != (context.rank, context.size):
        raise UserError(_mismatch(context, MPI, f"sees rank {rank} of {size}"), where="mpirun", remedy=_remedy())
    return MPI


def finalize() -> None:
    """The orderly end of MPI, if it was used."""
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
