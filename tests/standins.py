"""Devices that are not there: stand-ins that record what a training asks of a device that works behind its back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep import device as module
from lockstep.device import Device, Mark


class RecordingDevice(Device):
    """Works behind the program's back, and takes down everything that it is asked for.

    Attributes:
        calls: what was asked for, in order, by the thread that was to train; numbers come out with the wait for them.
        ahead_calls: the same of other threads.
    """

    behind = True
    calls: ClassVar[list[str]] = []
    ahead_calls: ClassVar[list[str]] = []

    def note(self, call: str) -> None:
        main = threading.current_thread() is threading.main_thread()
        (self.calls if main else self.ahead_calls).append(call)

    def use(self) -> None:
        self.note("use")

    def wait(self) -> None:
        self.note("wait")

    def mark(self) -> Mark:
        self.note("mark")
        return super().mark()

    def upload(self, array: NDArray) -> Tensor:
        self.note("upload")
        return super().upload(array)

    def fetch(self, numbers: Tensor) -> Callable[[], list[float]]:
        self.note("fetch")
        kept = numbers.clone()

        def found() -> list[float]:
            self.note("wait")
            return self.numbers(kept)

        return found

    def numbers(self, kept: Tensor) -> list[float]:
        found: list[float] = kept.tolist()
        return found

    def ahead(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda item: Aside(work(item))

    def taken(self, made: Any) -> Any:
        self.note("taken")
        assert isinstance(made, Aside), "what another stream makes must be taken over before it is used"
        return made.result


@dataclass(frozen=True)
class Aside:
    result: Any


class MetaDevice(RecordingDevice):
    """Tensors without numbers: whoever wants one, or mixes devices, fails. All that is fetched is taken to be zero."""

    def upload(self, array: NDArray) -> Tensor:
        with moving():
            return super().upload(array)

    def numbers(self, kept: Tensor) -> list[float]:
        return [0.0] * kept.numel()

    def ahead(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(item: Any) -> Aside:
            with OneDevice():
                return Aside(work(item))

        return watched


_moving = threading.local()


@contextmanager
def moving() -> Iterator[None]:
    """Copies to the device are wanted here."""
    _moving.on = True
    try:
        yield
    finally:
        _moving.on = False


class OneDevice(TorchDispatchMode):
    """Takes down every operation in which tensors of the host meet those of the device, as a GPU would have to wait."""

    met: ClassVar[list[str]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        # A single number of the host travels with the operation itself.
        places = {tensor.device.type for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
        if len(places) > 1 and not getattr(_moving, "on", False):
            self.met.append(str(operation))
        return result


@contextmanager
def standing_in(kind: str, stand_in: type[RecordingDevice], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a stand-in in the place of all devices of a kind."""
    monkeypatch.setitem(module.KINDS, kind, stand_in)
    module.device_of.cache_clear()
    RecordingDevice.calls.clear()
    RecordingDevice.ahead_calls.clear()
    OneDevice.met.clear()
    try:
        yield
    finally:
        monkeypatch.delitem(module.KINDS, kind)
        module.device_of.cache_clear()
