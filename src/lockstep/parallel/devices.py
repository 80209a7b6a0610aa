"""Threads and devices of a rank: decisions from variables and counts alone, then one place that applies them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockstep.errors import UserError
from lockstep.memory import keep_freed_memory
from lockstep.parallel.launchers import torchrun

if TYPE_CHECKING:
    from lockstep.parallel.group import Group

# Later names are those of DeePMD-kit's older releases and, last, what all programs understand.
_INTRA = ("DP_INTRA_OP_PARALLELISM_THREADS", "TF_INTRA_OP_PARALLELISM_THREADS", "OMP_NUM_THREADS")
_INTER = ("DP_INTER_OP_PARALLELISM_THREADS", "TF_INTER_OP_PARALLELISM_THREADS")


@dataclass(frozen=True)
class Resources:
    """What one rank can see: its host, the cores it may run on, the GPUs visible to it."""

    host: str
    cores: frozenset[int]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where a rank computes, and with how many threads.

    Attributes:
        spare_cores: for threads that work ahead of the training without taking time from it.
        cores: this rank's share of the node's.
        automatic: whether nobody has said how many threads there shall be, and there is a choice.
    """

    device: str
    intra_threads: int
    inter_threads: int
    visible_gpus: int = 0
    spare_cores: int = 0
    cores: int = 1
    automatic: bool = False

    def with_threads(self, number: int) -> Placement:
        """The same with another number of threads."""
        return replace(self, intra_threads=number, spare_cores=spare_cores(self.cores, number, self.device))

    def apply(self) -> None:
        """Tells torch and the C library. To be called once, before the first computation."""
        import torch

        from lockstep.device import device_of

        keep_freed_memory()
        torch.set_num_threads(self.intra_threads)
        # torch refuses to change it once its pool runs, which happens only when placed twice in one process.
        if torch.get_num_interop_threads() != self.inter_threads:
            torch.set_num_interop_threads(self.inter_threads)
        device_of(self.device).use()


def device_type(environ: Mapping[str, str], gpu_count: int) -> str:
    """cuda where there are GPUs, unless DEVICE=cpu forbids them."""
    return "cpu" if environ.get("DEVICE", "").lower() == "cpu" or gpu_count == 0 else "cuda"


def place(ranks: Sequence[Resources], rank: int, device: str, environ: Mapping[str, str]) -> Placement:
    """The placement of `rank`, given the resources of all ranks."""
    own = ranks[rank]
    cores = share_of_cores(ranks, rank)
    by_launcher = torchrun.set_threads_itself(environ)
    names = _INTRA[:-1] if by_launcher else _INTRA
    given = threads_from(environ, names)
    intra_threads = given or cores
    return Placement(
        device="cpu" if device == "cpu" else f"cuda:{choose_gpu(ranks, rank)}",
        intra_threads=intra_threads,
        inter_threads=threads_from(environ, _INTER) or 1,
        visible_gpus=0 if device == "cpu" else len(own.gpus),
        spare_cores=spare_cores(cores, intra_threads, device),
        cores=cores,
        automatic=device == "cpu" and not given and cores > 1,
    )


def spare_cores(cores: int, intra_threads: int, device: str) -> int:
    """Cores of a rank that its training leaves idle: all beside a GPU, else those without a thread of their own.

    A thread more than there are cores costs far more than it does: the others wait for the one that it has displaced
    at the end of every loop that they share.
    """
    return cores if device != "cpu" else max(cores - intra_threads, 0)


def threads_from(environ: Mapping[str, str], names: Sequence[str]) -> int:
    """The first of the variables that is set to more than 0; 0 (automatic) if none is."""
    for name in names:
        # OMP_NUM_THREADS may hold a list, one number for each level of nesting.
        text = environ.get(name, "").split(",")[0].strip()
        if text and not text.isdigit():
            raise UserError(
                "expected a number of threads, or 0 to choose by itself",
                where=f"environment variable {name}",
                value=environ[name],
            )
        if text and int(text) > 0:
            return int(text)
    return 0


def share_of_cores(ranks: Sequence[Resources], rank: int) -> int:
    """Cores for this rank: those it may run on, divided among the ranks of its node that may run on the same.

    Where the launcher has bound each rank to cores of its own, these are all its own.
    """
    own = ranks[rank]
    sharers = sum(1 for other in ranks if (other.host, other.cores) == (own.host, own.cores))
    return max(1, len(own.cores) // sharers)


def choose_gpu(ranks: Sequence[Resources], rank: int) -> int:
    """Which of its visible GPUs a rank takes: one process, one GPU, by its place among those that see the same.

    Some launchers show each rank a GPU of its own; then it is the first of one.
    """
    own = ranks[rank]
    sharers = [r for r, other in enumerate(ranks) if (other.host, other.gpus) == (own.host, own.gpus)]
    if len(sharers) > len(own.gpus):
        raise UserError(
            f"{len(sharers)} ranks on {own.host}, but {len(own.gpus)} visible GPUs: each rank needs one of its own",
            where="CUDA_VISIBLE_DEVICES",
            value=os.environ.get("CUDA_VISIBLE_DEVICES", "unset"),
            remedy=f"start {len(own.gpus)} ranks on this node, make more GPUs visible, or set DEVICE=cpu",
        )
    return sharers.index(rank)


def place_group(group: Group, device: str, environ: Mapping[str, str] = os.environ) -> Placement:
    """The placement of this rank among its group."""
    from lockstep.device import visible_gpus

    gpus = visible_gpus() if device != "cpu" else ()
    own = Resources(os.uname().nodename, frozenset(os.sched_getaffinity(0)), gpus)
    return place(group.all_gather_object(own), group.rank, device, environ)
