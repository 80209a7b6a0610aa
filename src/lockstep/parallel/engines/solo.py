"""One process: every exchange is with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.group import Group

if TYPE_CHECKING:
    import torch


def usable(context: WorkerContext, device: str, environ: Mapping[str, str]) -> bool:
    return context.size == 1


def connect(context: WorkerContext, device: str, timeout: float) -> Group:
    return SoloGroup(context, timeout)


class SoloGroup(Group):
    name = "none"

    def __init__(self, context: WorkerContext, timeout: float = 60.0) -> None:
        assert context.size == 1
        super().__init__(context, timeout)

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        pass

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        pass

    def _all_gather_object(self, item: Any) -> list[Any]:
        return [item]

    def _barrier(self) -> None:
        pass

    def _close(self) -> None:
        pass

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        return SoloGroup(context, self.progress.timeout)
