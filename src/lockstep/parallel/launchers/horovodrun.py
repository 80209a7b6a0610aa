"""horovodrun with its Gloo controller, which lends us its HTTP key-value server to meet at.

Where horovodrun wraps mpirun instead, it sets none of these variables and the MPI launchers answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.errors import UserError
from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.launchers.variables import integer, local_of, rank_of


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if "HOROVOD_RANK" not in environ:
        return None
    rank, size = rank_of(environ, "HOROVOD_RANK", "HOROVOD_SIZE")
    local_rank, local_size = local_of(environ, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", size)
    return WorkerContext("horovodrun", rank, size, local_rank, local_size, meet=_meet(environ, size))


def _meet(environ: Mapping[str, str], size: int) -> Meet:
    if size == 1:
        return Meet("nobody")
    host = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    if host is None:
        raise UserError(
            f"HOROVOD_SIZE says {size} ranks, but the rendezvous of horovodrun is not given",
            where="environment variable HOROVOD_GLOO_RENDEZVOUS_ADDR",
            remedy="start with horovodrun, or with mpirun or torchrun",
        )
    return Meet("http", host, integer(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT"))
