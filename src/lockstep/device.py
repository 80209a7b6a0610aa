"""The computing device: what a training asks of it beside tensor operations, and all that is particular to CUDA.

A GPU works behind the program's back: whoever asks it for a number waits until it has done all that was asked before. A
step asks once, and for the numbers of the step before. So numbers leave the device by `fetch`, arrays reach it by
`upload`, samples are prepared in streams of their own by `ahead`, and time is told by `mark`. On the host all of these
do the obvious. Whatever else runs on a GPU is plain tensor operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Item = TypeVar("Item")
Made = TypeVar("Made")


class Mark(Protocol):
    """A place in the device's queue of work."""

    def reached(self) -> bool: ...

    def wait(self) -> None: ...

    def seconds_since(self, earlier: Any) -> float: ...


class Device:
    """The host, and every device on which a call returns when its work is done.

    Attributes:
        behind: whether it works behind the program's back.
    """

    behind = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def use(self) -> None:
        """Let this process compute here."""

    def wait(self) -> None:
        """Return when all that was asked for is done."""

    def mark(self) -> Mark:
        """The present end of the device's queue."""
        return _Now()

    def upload(self, array: NDArray) -> Tensor:
        """An array as a tensor here, for use in the present stream. On the host it is the same memory."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def fetch(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Ask for a few numbers; what is returned waits until they are there."""
        found: Callable[[], list[float]] = numbers.tolist
        return found

    def ahead(self, work: Callable[[Item], Made]) -> Callable[[Item], Any]:
        """`work`, to be done by other threads beside the training; `taken` brings what it makes to the training."""
        return work

    def taken(self, made: Any) -> Any:
        """What `ahead` has made, ready for the training's next operation."""
        return made


class _Now:
    """The host's queue is always empty: its end is now."""

    def __init__(self) -> None:
        self.time = perf_counter()

    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def seconds_since(self, earlier: _Now) -> float:
        return self.time - earlier.time


class CudaDevice(Device):
    """A GPU.

    Args:
        cuda: the module `torch.cuda`.
    """

    behind = True

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__(device)
        self._cuda, self._own = cuda, threading.local()

    def use(self) -> None:
        self._cuda.set_device(self.device)

    def wait(self) -> None:
        self._cuda.synchronize(self.device)

    def mark(self) -> Mark:
        return _Event(self._cuda, self._cuda.current_stream(self.device), timing=True)

    def upload(self, array: NDArray) -> Tensor:
        # From pinned memory the copy needs no waiting. The allocator keeps that memory until the copy is done.
        pinned = torch.from_numpy(np.ascontiguousarray(array)).pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def fetch(self, numbers: Tensor) -> Callable[[], list[float]]:
        host = torch.empty(numbers.shape, dtype=numbers.dtype).pin_memory()
        host.copy_(numbers, non_blocking=True)
        copied = _Event(self._cuda, self._cuda.current_stream(self.device))

        def found() -> list[float]:
            copied.wait()
            numbers: list[float] = host.tolist()
            return numbers

        return found

    def ahead(self, work: Callable[[Item], Made]) -> Callable[[Item], Any]:
        def beside(item: Item) -> _Ahead[Made]:
            stream = self._own_stream()
            with self._cuda.stream(stream):
                made = work(item)
                return _Ahead(made, _Event(self._cuda, stream))

        return beside

    def taken(self, made: Any) -> Any:
        if not isinstance(made, _Ahead):
            return made
        stream = self._cuda.current_stream(self.device)
        stream.wait_event(made.ready.event)
        for tensor in tensors_in(made.result):
            # Its memory belongs to the other stream, which must not use it again before this one is done with it.
            tensor.record_stream(stream)
        return made.result

    def _own_stream(self) -> Any:
        """The stream of the calling thread. It comes after all that was asked for before its first use."""
        if not hasattr(self._own, "stream"):
            self._own.stream = self._cuda.Stream(self.device)
            self._own.stream.wait_stream(self._cuda.default_stream(self.device))
        return self._own.stream


@dataclass(frozen=True)
class _Ahead(Generic[Made]):
    """What another stream makes, and when it will be ready."""

    result: Made
    ready: _Event


class _Event:
    """The present end of a stream."""

    def __init__(self, cuda: Any, stream: Any, timing: bool = False) -> None:
        # Blocking: who waits leaves the core to the threads that prepare what comes next.
        self.event = cuda.Event(enable_timing=timing, blocking=True)
        self.event.record(stream)

    def reached(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: _Event) -> float:
        return float(earlier.event.elapsed_time(self.event)) / 1000.0


KINDS: dict[str, type[Device]] = {"cuda": CudaDevice}
"""Devices that need more than the host does, by their type."""


@lru_cache
def device_of(device: torch.device | str) -> Device:
    """What is asked of a device, by its name."""
    device = torch.device(device)
    return KINDS.get(device.type, Device)(device)


def upload(array: NDArray, device: torch.device | str) -> Tensor:
    """An array as a tensor on a device."""
    return device_of(device).upload(array)


def chosen(table: Tensor, numbers: Sequence[int]) -> Tensor:
    """Rows of a table by numbers that the host knows. As an index, these would have to be copied to the device."""
    if list(numbers) == list(range(len(table))):
        return table
    return torch.cat([table[n : n + 1] for n in numbers]) if numbers else table[:0]


def visible_gpus() -> tuple[str, ...]:
    """A name for every GPU this process sees, equal for the same card in every process."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(str(getattr(torch.cuda.get_device_properties(i), "uuid", i)) for i in range(count))


def current_gpu() -> int | None:
    """The number of the GPU that this process computes on; None where it has none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def transport(kind: str) -> tuple[str, str]:
    """What carries the messages of torch.distributed between devices of a kind: for people, and for torch."""
    # With GPUs too, words and numbers on the CPU go by gloo: they then need no device to be chosen.
    return ("NCCL", "cpu:gloo,cuda:nccl") if kind == "cuda" else ("gloo", "gloo")


def tensors_in(sample: Any) -> Iterator[Tensor]:
    """All tensors that a sample is made of, however it holds them."""
    seen: set[int] = set()
    left = [sample]
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, Mapping):
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            left.extend(item)
        elif hasattr(item, "__dict__") and not isinstance(item, type | torch.nn.Module):
            left.extend(vars(item).values())
