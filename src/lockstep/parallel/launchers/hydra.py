"""mpirun of MPICH and its descendants (Intel MPI, MVAPICH), and other starters that speak PMI."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.launchers.variables import local_of, meet_at_master, rank_of


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if "PMI_RANK" not in environ:
        return None
    rank, size = rank_of(environ, "PMI_RANK", "PMI_SIZE")
    local_rank, local_size = local_of(environ, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", size)
    if size == 1:
        return WorkerContext("hydra", rank, size, local_rank, local_size)
    return WorkerContext("hydra", rank, size, local_rank, local_size, meet=meet_at_master(environ) or Meet("mpi"))
