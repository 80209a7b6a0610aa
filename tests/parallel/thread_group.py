"""A group whose ranks are threads of one process, for tests of what is exchanged rather than how."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.group import Group

Result = TypeVar("Result")


class _Table:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.items: list[Any] = [None] * size


class ThreadGroup(Group):
    name = "threads"

    def __init__(self, rank: int, table: _Table) -> None:
        super().__init__(WorkerContext("test", rank, len(table.items), rank, len(table.items)), 20.0)
        self._table = table

    def _all_gather_object(self, item: Any) -> list[Any]:
        # Copies, as other groups give them: ranks have nothing in common.
        return [pickle.loads(copy) for copy in self._gather(pickle.dumps(item))]

    def _gather(self, item: Any) -> list[Any]:
        self._table.items[self.rank] = item
        self._table.barrier.wait()
        items = list(self._table.items)
        self._table.barrier.wait()
        return items

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        parts = self._gather(tensor.clone())
        tensor.copy_(torch.stack(parts).sum(0))

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        tensor.copy_(self._gather(tensor.clone())[root])

    def _barrier(self) -> None:
        self._table.barrier.wait()

    def _split(self, context: WorkerContext, members: Sequence[Sequence[int]]) -> Group:
        tables = self._gather([_Table(len(ranks)) for ranks in members])[0]
        number = next(number for number, ranks in enumerate(members) if self.rank in ranks)
        return ThreadGroup(context.rank, tables[number])

    def _close(self) -> None:
        pass


def on_ranks(size: int, work: Callable[[Group], Result]) -> list[Result]:
    """`work` on `size` ranks at once; their results in order of rank."""
    table = _Table(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, ThreadGroup(rank, table)) for rank in range(size)]
        return [future.result() for future in futures]
