"""A group over MPI: in-place exchanges straight from the tensors' memory, on CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines import mpi_world
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group

if TYPE_CHECKING:
    import torch


def usable(context: WorkerContext, device: str, environ: Mapping[str, str]) -> bool:
    return context.launcher in mpi_world.LAUNCHERS and device == "cpu" and mpi_world.is_installed()


def connect(context: WorkerContext, device: str, timeout: float) -> Group:
    MPI = mpi_world.load(context, "mpi")
    # A communicator of our own: other users of COMM_WORLD cannot get between our messages.
    return MpiGroup(context, timeout, MPI, MPI.COMM_WORLD.Dup())


class MpiGroup(Group):
    """Blocking exchanges: MPI has no time limit of its own, the watch keeps it from its thread."""

    def __init__(self, context: WorkerContext, timeout: float, MPI: Any, communicator: Any) -> None:
        super().__init__(context, timeout)
        self.name = f"MPI ({MPI.get_vendor()[0]})"
        self._mpi, self._communicator = MPI, communicator

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        self._communicator.Allreduce(self._mpi.IN_PLACE, tensor.detach().numpy())

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        assert tensor.is_contiguous()
        self._communicator.Bcast(tensor.detach().numpy(), root)

    def _all_gather_object(self, item: Any) -> list[Any]:
        return list(self._communicator.allgather(item))

    def _barrier(self) -> None:
        self._communicator.Barrier()

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        colour = next(number for number, ranks in enumerate(members) if self.rank in ranks)
        communicator = self._communicator.Split(colour, self.rank)
        if context.size == 1:
            return SoloGroup(context, self.progress.timeout)
        return MpiGroup(context, self.progress.timeout, self._mpi, communicator)

    def _close(self) -> None:
        mpi_world.finalize_at_exit()
