"""The optimizer, and its state as plain named tensors.

A checkpoint holds tensors and JSON, nothing that has to be unpickled, so the state of the optimizer is taken
apart into tensors named after the parameters and put together again bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.errors import CheckpointError

if TYPE_CHECKING:
    from lockstep.config.optimizer import OptimizerConfig

_CLASSES = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
_FUSED_DEVICES = {"cpu", "cuda"}


def make_optimizer(parameters: Iterable[tuple[str, Parameter]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of the input file over those of the named parameters that are trainable.

    Its learning rate is zero until `set_learning_rate`: a forgotten schedule then shows at once.
    """
    trainable = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    return _CLASSES[config.type](
        trainable,
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        weight_decay=config.weight_decay,
        fused={parameter.device.type for _, parameter in trainable} <= _FUSED_DEVICES,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the next update use `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> Tensor | None:
    """Scale all gradients down together when their norm exceeds `max_norm`; return what the norm was.

    A `max_norm` of 0 leaves them alone and spares the norm. It stays on the device: whoever looks pays for the wait.
    """
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm) if max_norm > 0 else None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state as `<parameter>.<quantity>` -> tensor (not copied); empty before the first update."""
    return {
        f"{name}.{quantity}": torch.as_tensor(value)
        for name, parameter in _named(optimizer).items()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore what `optimizer_tensors` gave, bit for bit, the step counters included.

    A parameter without tensors starts anew, as one that never had a gradient.
    """
    named = _named(optimizer)
    state: dict[Tensor, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, quantity = key.rpartition(".")
        if name not in named:
            raise CheckpointError(f"has optimizer state of a parameter {name!r} that the model does not have")
        parameter = named[name]
        if tensor.ndim and tensor.shape != parameter.shape:
            raise CheckpointError(
                f"the optimizer's {quantity} of {name} has shape {tuple(tensor.shape)},"
                f" the parameter {tuple(parameter.shape)}"
            )
        state.setdefault(parameter, {})[quantity] = tensor.detach().to(parameter.device, copy=True)
    optimizer.state.clear()
    optimizer.state.update(state)


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Parameter]:
    return {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
    }
