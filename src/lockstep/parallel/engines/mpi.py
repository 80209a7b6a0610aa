"""A group over MPI: in-place exchanges straight from the tensors' memory, on CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines import mpi_world
from lockstep.parallel.group import Group

if TYPE_CHECKING:
    import torch


class MpiGroup(Group):
    """Blocking exchanges: MPI has no time limit of its own, the watch keeps it from its thread."""

    def __init__(self, context: WorkerContext, timeout: float) -> None:
        super().__init__(context, timeout)
        MPI = mpi_world.load(context)
        self.name = f"MPI ({MPI.get_vendor()[0]})"
        self._in_place = MPI.IN_PLACE
        # A communicator of our own: other users of COMM_WORLD cannot get between our messages.
        self._world = MPI.COMM_WORLD.Dup()

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        self._world.Allreduce(self._in_place, tensor.detach().numpy())

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        assert tensor.is_contiguous()
        self._world.Bcast(tensor.detach().numpy(), root)

    def _all_gather_object(self, item: Any) -> list[Any]:
        return list(self._world.allgather(item))

    def _barrier(self) -> None:
        self._world.Barrier()

    def _close(self) -> None:
        mpi_world.finalize()
