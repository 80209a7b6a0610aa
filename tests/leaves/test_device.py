"""What is asked of CUDA, in which order: with a stand-in for `torch.cuda`, and tensors without numbers for its own."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep
from lockstep.device import CudaDevice, Device, chosen, device_of, tensors_in, transport

META = torch.device("meta")


@dataclass
class Event:
    calls: list[Any]
    enable_timing: bool
    blocking: bool

    def record(self, stream: str) -> None:
        self.calls.append(("record", stream))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.calls.append("wait for the event")

    def elapsed_time(self, end: Event) -> float:
        return 1500.0


@dataclass
class Stream:
    calls: list[Any]
    name: str

    def wait_event(self, event: Event) -> None:
        self.calls.append((self.name, "waits for the event"))

    def wait_stream(self, other: Stream) -> None:
        self.calls.append((self.name, "comes after", other.name))


@dataclass
class Cuda:
    """`torch.cuda` as far as it is used: takes down what is asked for."""

    calls: list[Any] = field(default_factory=list)
    streams: int = 0
    own: Any = field(default_factory=threading.local)

    def set_device(self, device: torch.device) -> None:
        self.calls.append(("set_device", device))

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("wait for everything")

    def Event(self, enable_timing: bool, blocking: bool) -> Event:  # noqa: N802
        return Event(self.calls, enable_timing, blocking)

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        self.streams += 1
        return Stream(self.calls, f"side {self.streams}")

    def default_stream(self, device: torch.device) -> Stream:
        return Stream(self.calls, "default")

    def current_stream(self, device: torch.device) -> Stream:
        return getattr(self.own, "stream", None) or self.default_stream(device)

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        self.own.stream = stream
        yield
        self.own.stream = None


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        cuda.calls.append("pin")
        return tensor

    def to(tensor: torch.Tensor, *args: Any, non_blocking: bool = False) -> torch.Tensor:
        cuda.calls.append(("copy", non_blocking))
        return torch.empty_like(tensor, device=META)

    def copy_(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        cuda.calls.append(("copy back", non_blocking))
        return tensor.fill_(2.0)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: cuda.calls.append(("kept for", stream.name))
    )
    return cuda


def test_arrays_go_to_a_gpu_through_pinned_memory_without_a_wait(cuda: Cuda) -> None:
    tensor = CudaDevice(META, cuda).upload(np.zeros((2, 3)))
    assert tensor.shape == (2, 3)
    assert cuda.calls == ["pin", ("copy", True)]


def test_numbers_are_waited_for_when_they_are_looked_at_and_not_before(cuda: Cuda) -> None:
    found = CudaDevice(META, cuda).fetch(torch.empty(3, device=META))
    assert [call if isinstance(call, str) else call[0] for call in cuda.calls] == ["pin", "copy back", "record"]
    assert ("copy back", True) in cuda.calls
    assert found() == [2.0, 2.0, 2.0]
    assert cuda.calls[-1] == "wait for the event"


def test_samples_are_made_in_a_stream_of_each_thread_and_taken_over_by_the_training(cuda: Cuda) -> None:
    device = CudaDevice(META, cuda)
    make = device.ahead(lambda item: {"sample": torch.empty(item, device=META), "name": "water"})
    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(make, 2).result(), pool.submit(make, 3).result()
    assert cuda.streams == 1
    assert cuda.calls[0] == ("side 1", "comes after", "default")
    assert [call[1].name for call in cuda.calls[1:]] == ["side 1", "side 1"]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(make, 2).result()
    assert cuda.streams == 2
    cuda.calls.clear()
    sample = device.taken(first)
    assert sample["sample"].shape == (2,)
    assert cuda.calls == [("default", "waits for the event"), ("kept for", "default")]
    assert device.taken(second)["sample"].shape == (3,)


def test_what_was_made_in_turn_is_there_already(cuda: Cuda) -> None:
    assert CudaDevice(META, cuda).taken("a sample") == "a sample"
    assert cuda.calls == []


def test_marks_tell_time_by_the_device(cuda: Cuda) -> None:
    device = CudaDevice(META, cuda)
    device.use()
    earlier, later = device.mark(), device.mark()
    assert later.reached()
    assert later.seconds_since(earlier) == 1.5
    device.wait()
    assert cuda.calls[0] == ("set_device", META)
    assert cuda.calls[-1] == "wait for everything"


def test_on_the_host_nothing_is_copied() -> None:
    array = np.arange(3.0)
    host = device_of("cpu")
    assert type(host) is Device
    assert not host.behind
    host.upload(array)[0] = 7.0
    assert array[0] == 7.0
    assert host.fetch(torch.tensor([1.0, 2.0]))() == [1.0, 2.0]
    assert host.ahead(len) is len
    assert host.taken("x") == "x"


def test_a_gpu_is_a_cuda_device_and_its_messages_go_by_nccl() -> None:
    assert isinstance(device_of("cuda:0"), CudaDevice)
    assert transport("cuda") == ("NCCL", "cpu:gloo,cuda:nccl")
    assert transport("cpu") == ("gloo", "gloo")


def test_all_tensors_of_a_sample_are_found_once() -> None:
    @dataclass
    class Sample:
        a: Any
        b: Any

    class Held:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.itself = tensor, self

    a, b, c = (torch.zeros(1) for _ in range(3))
    found = list(tensors_in(Sample({"x": a, "y": [b, a]}, (Held(c), torch.nn.Linear(1, 1), 3.0, None))))
    assert {id(tensor) for tensor in found} == {id(a), id(b), id(c)}
    assert len(found) == 3


def test_rows_are_chosen_by_numbers() -> None:
    table = torch.arange(6.0).view(3, 2)
    assert chosen(table, (0, 1, 2)) is table
    assert chosen(table, [2, 0]).equal(table[[2, 0]])
    assert chosen(table, []).shape == (0, 2)


def test_nothing_but_one_module_knows_cuda() -> None:
    """What cannot be tried here is kept where it can be read at one glance."""
    root = Path(lockstep.__file__).parent
    known = re.compile(r"torch\.cuda|\bcuda\.|nccl|pin_memory|record_stream")
    # DeePMD-kit's own environment variables and torch's name of a device are no calls of CUDA.
    users = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if known.search(path.read_text())}
    assert users == {"device.py"}
