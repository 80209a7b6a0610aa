"""Which launcher started this process: one small file each, the first that answers wins.

The order matters where launchers are nested. torchrun is often started once per node by srun or mpirun, whose
variables its children inherit: the innermost launcher must be asked first. An mpirun inside a Slurm job starts
its helpers with srun, so the MPI launchers come before Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.launchers import alone, horovodrun, hydra, openmpi, slurm, torchrun

Detect = Callable[[Mapping[str, str]], WorkerContext | None]

LAUNCHERS: tuple[tuple[str, Detect], ...] = (
    ("torchrun", torchrun.detect),
    ("horovodrun", horovodrun.detect),
    ("hydra", hydra.detect),
    ("openmpi", openmpi.detect),
    ("slurm", slurm.detect),
)


def detect(environ: Mapping[str, str]) -> WorkerContext:
    """The context of this process, decided from its environment variables alone."""
    for _, ask in LAUNCHERS:
        context = ask(environ)
        if context is not None:
            _refuse_contradiction(context, environ)
            return context
    return alone.detect(environ)


def _refuse_contradiction(context: WorkerContext, environ: Mapping[str, str]) -> None:
    """Stops copies that would each believe what RANK and WORLD_SIZE of the surrounding shell say.

    Some clusters export RANK and WORLD_SIZE for the node, not for the process; an `mpirun -np 4` there would
    otherwise be four times rank 0 of 1, over the same files. A real torchrun is known by its run id and trusted.
    """
    if context.launcher != "torchrun" or torchrun.is_genuine(environ):
        return
    for name, ask in LAUNCHERS[1:]:
        other = ask(environ)
        if other is not None and (other.rank, other.size) != (context.rank, context.size):
            raise UserError(
                f"they contradict {name}, which started this process as rank {other.rank} of {other.size}",
                where="environment variables RANK, WORLD_SIZE",
                value=(environ["RANK"], environ["WORLD_SIZE"]),
                remedy="unset RANK and WORLD_SIZE before the launcher, or start with torchrun",
            )


__all__ = ["LAUNCHERS", "detect"]
