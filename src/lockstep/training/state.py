"""What a checkpoint holds of a run, and how a run is put back into that state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep import products
from lockstep.checkpoint.format import Checkpoint
from lockstep.errors import taken_apart
from lockstep.model.weights import load_weights
from lockstep.optim.optimizer import State
from lockstep.tasks import Column, Metrics, Task
from lockstep.training.average import Average
from lockstep.version import __version__


def run_tensors(task: Task, optimizer: State, average: Average, interval: Metrics | None) -> dict[str, Tensor]:
    """Weights, constants, optimizer state and the weights' average, by dotted name."""
    tensors = {f"model.{name}": tensor for name, tensor in task.module.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.tensors().items()}
    tensors |= average.tensors()
    if interval is not None:
        tensors["interval.values"] = interval.values
    return tensors


def run_info(task: Task, stream: Mapping[str, Any], pace: Mapping[str, int], threads: int) -> dict[str, Any]:
    """All else that a run needs to go on, as JSON."""
    versions = {"lockstep": __version__, "torch": torch.__version__}
    return {
        "input": task.config.dump(),
        "stream": dict(stream),
        **task.state(),
        "pace": dict(pace),
        "threads": threads,
        "products": products.maker(),
        "versions": versions,
    }


def restore(task: Task, optimizer: State, checkpoint: Checkpoint) -> None:
    """Weights and optimizer as the checkpoint has them."""
    with taken_apart(checkpoint.path):
        load_weights(task.module, checkpoint.group("model"), str(checkpoint.path))
        optimizer.load(checkpoint.group("optimizer"))


def restore_interval(checkpoint: Checkpoint, columns: tuple[Column, ...], device: str) -> Metrics | None:
    """The error sums since the last display."""
    values = checkpoint.tensors.get("interval.values")
    if values is None:
        return None
    with taken_apart(checkpoint.path):
        return Metrics(columns, values.to(device, torch.float64, copy=True))
