"""Weights and constants, copied by name into a module of the same shape."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lockstep.errors import CheckpointError

_SPREADS = ("row_std_radial", "row_std_angular")
_AGAIN = "take an earlier checkpoint, or export the model again"


AVERAGE = "average"
"""Under which names a checkpoint has the running average of the weights."""


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights and constants into a module of the same shape; refuses what is missing or has another."""
    for name, tensor in module.state_dict().items():
        if name not in tensors:
            raise CheckpointError(f"the weights {name} are missing", where=where)
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
            raise CheckpointError(f"the weights {name} have shape {shapes}", where=where)
        if tensors[name].is_complex():
            raise CheckpointError(f"the weights {name} are complex numbers", where=where, remedy=_AGAIN)
        tensor.copy_(tensors[name])


def refuse_unusable(tensors: Mapping[str, Tensor], where: str) -> None:
    """Stop at weights and constants of a potential with which no energy can be computed."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            bad = tensor[~tensor.isfinite()].flatten()[0].item()
            raise CheckpointError(f"the weights {name} hold {bad}", where=where, remedy=_AGAIN)
        if name.startswith(_SPREADS) and not (tensor > 0).all():
            reason = f"the spread {name} by which environments are divided is {tensor.min().item():g}"
            raise CheckpointError(reason, where=where, remedy=_AGAIN)
