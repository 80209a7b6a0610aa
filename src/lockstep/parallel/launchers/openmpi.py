"""mpirun of Open MPI."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.launchers.variables import local_of, meet_at_master, rank_of


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    rank, size = rank_of(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local_rank, local_size = local_of(environ, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", size)
    meet = Meet("nobody") if size == 1 else meet_at_master(environ) or Meet("mpi")
    return WorkerContext("openmpi", rank, size, local_rank, local_size, meet=meet)
