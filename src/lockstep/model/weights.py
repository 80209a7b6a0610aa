"""Weights and constants, copied by name into a module of the same shape."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lockstep.errors import CheckpointError


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights and constants into a module of the same shape; refuses what is missing or has another."""
    for name, tensor in module.state_dict().items():
        if name not in tensors:
            raise CheckpointError(f"the weights {name} are missing", where=where)
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
            raise CheckpointError(f"the weights {name} have shape {shapes}", where=where)
        tensor.copy_(tensors[name])
