"""mpirun of MPICH and its descendants (Intel MPI, MVAPICH), and other starters that speak PMI."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.launchers import slurm
from lockstep.parallel.launchers.variables import local_of, meet_at_master, rank_of


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if "PMI_RANK" not in environ:
        return None
    rank, size = rank_of(environ, "PMI_RANK", "PMI_SIZE")
    local_rank, local_size = local_of(environ, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", size)
    meet = Meet("nobody") if size == 1 else _meet(environ, rank, size)
    return WorkerContext("hydra", rank, size, local_rank, local_size, meet=meet)


def _meet(environ: Mapping[str, str], rank: int, size: int) -> Meet:
    """Through MPI, unless another way is known: srun speaks PMI too, and many clusters have no mpi4py."""
    step = slurm.detect(environ)
    if step is not None and (step.rank, step.size) == (rank, size):
        return step.meet
    return meet_at_master(environ) or Meet("mpi")
