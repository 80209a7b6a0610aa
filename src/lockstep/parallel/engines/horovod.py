"""A group over Horovod, where it is installed: by its Gloo controller under horovodrun, by MPI under mpirun."""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines import horovod_meeting, mpi_world
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group

if TYPE_CHECKING:
    import torch

# Libraries that tell which MPI a Horovod was built for, by launcher.
_LIBRARIES = {"hydra": b"libmpi.so.12", "openmpi": b"libmpi.so.40"}
_INSTALL = "pip install horovod builds it for the torch that is installed; or leave LOCKSTEP_GROUP unset"


def usable(context: WorkerContext, device: str, environ: Mapping[str, str]) -> bool:
    """Under its own launcher, and under an mpirun of the MPI that it was built for; on GPUs NCCL does it better."""
    library = _library()
    if library is None or device != "cpu":
        return False
    if context.launcher == "horovodrun":
        return True
    return mpi_world.is_installed() and _meets_by_mpi(context)


def connect(context: WorkerContext, device: str, timeout: float) -> Group:
    if _library() is None:
        raise UserError("Horovod is not installed", where="environment variable LOCKSTEP_GROUP", remedy=_INSTALL)
    # Parts of a group are made after the start.
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    if _meets_by_mpi(context):
        mpi_world.load(context, "horovod")
    elif context.launcher != "horovodrun":
        horovod_meeting.meet(context, timeout)
    hvd = _started()
    if (hvd.rank(), hvd.size()) != (context.rank, context.size):
        raise UserError(
            f"{context.launcher} started this process as rank {context.rank} of {context.size}, but Horovod sees rank "
            f"{hvd.rank()} of {hvd.size()}: it was built for another MPI",
            where="horovod",
            remedy="build Horovod for the MPI of this mpirun, start with horovodrun, or set LOCKSTEP_GROUP=mpi",
        )
    return HorovodGroup(context, timeout, hvd, hvd.global_process_set)


class HorovodGroup(Group):
    """Exchanges are named: Horovod knows one that comes again, and tells the parts of a group apart."""

    def __init__(self, context: WorkerContext, timeout: float, hvd: Any, processes: Any) -> None:
        super().__init__(context, timeout)
        self.name = f"Horovod ({'MPI' if hvd.mpi_enabled() else 'gloo'})"
        self._hvd, self._processes = hvd, processes
        self._label = f"lockstep.{processes.process_set_id}"

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        name = f"{self._label}.sum.{tensor.dtype}.{tensor.numel()}"
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=name, process_set=self._processes)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        name = f"{self._label}.copy.{tensor.dtype}.{tensor.numel()}.{root}"
        self._hvd.broadcast_(tensor, self._ranks[root], name=name, process_set=self._processes)

    def _all_gather_object(self, item: Any) -> list[Any]:
        import torch

        data = torch.frombuffer(bytearray(pickle.dumps(item)), dtype=torch.uint8)
        sizes = self._gathered(torch.tensor([data.numel()]), "sizes")
        pieces = self._gathered(data, "items").split(sizes.tolist())
        return [pickle.loads(piece.numpy().tobytes()) for piece in pieces]

    def _barrier(self) -> None:
        self._hvd.barrier(process_set=self._processes)

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        own: Any = None
        everywhere = self._ranks
        # Every rank takes part in making every part.
        for ranks in members:
            if len(ranks) > 1:
                made = self._hvd.add_process_set([everywhere[rank] for rank in ranks])
                own = made if self.rank in ranks else own
        if own is None:
            return SoloGroup(context, self.progress.timeout)
        return HorovodGroup(context, self.progress.timeout, self._hvd, own)

    def _close(self) -> None:
        self._hvd.shutdown()
        mpi_world.finalize_at_exit()

    def _gathered(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        gathered: torch.Tensor = self._hvd.allgather(tensor, name=f"{self._label}.{what}", process_set=self._processes)
        return gathered

    @property
    def _ranks(self) -> list[int]:
        """The ranks of this group, by their numbers in the world."""
        return list(self._processes.ranks or range(self.size))


def _library() -> Path | None:
    """Horovod's library for torch; None where it is not installed, or not for torch. Nothing is loaded."""
    found = importlib.util.find_spec("horovod")
    folders = (found.submodule_search_locations if found else None) or []
    return next((path for folder in folders for path in Path(folder, "torch").glob("mpi_lib*.so")), None)


def _uses_mpi_of(launcher: str, library: Path) -> bool:
    return _LIBRARIES[launcher] in library.read_bytes()


def _meets_by_mpi(context: WorkerContext) -> bool:
    library = _library()
    return context.launcher in _LIBRARIES and library is not None and _uses_mpi_of(context.launcher, library)


def _started() -> Any:
    """The module, its background thread running. Its own timeline, if one is asked for, goes beside ours."""
    asked = os.environ.get("HOROVOD_TIMELINE", "")
    if asked:
        os.environ["HOROVOD_TIMELINE"] = str(Path(asked).with_suffix(".horovod.json"))
    try:
        import horovod.torch as hvd

        hvd.init()
    except (ImportError, RuntimeError, ValueError) as problem:
        raise UserError(f"Horovod cannot start: {problem}", where="horovod", remedy=_INSTALL) from problem
    finally:
        if asked:
            os.environ["HOROVOD_TIMELINE"] = asked
    return hvd
