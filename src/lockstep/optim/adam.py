"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adam import adam

from lockstep.errors import CheckpointError

if TYPE_CHECKING:
    from lockstep.config.optimizer import AdamConfig, AdamWConfig

_FUSED_DEVICES = {"cpu", "cuda", "meta"}
"""Where torch has the fused kernel; on the meta device, so that what runs on a GPU is what is tried there."""


class Adam:
    """Adam, and AdamW with its decoupled weight decay: torch's fused kernel, with the state kept here.

    The classes of `torch.optim` load all of torch's compiler when the first of them is made, which is a quarter of
    the time to a training's first step.

    Args:
        parameters: all that are trained.
        own: names of those that this rank updates.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], config: AdamConfig | AdamWConfig, own: Collection[str]
    ) -> None:
        self._parameters, self._config = {name: parameters[name] for name in parameters if name in own}, config
        self._fused = {parameter.device.type for parameter in self._parameters.values()} <= _FUSED_DEVICES
        self._state: dict[str, dict[str, Tensor]] = {}

    @staticmethod
    def cost(parameter: Parameter, config: AdamConfig | AdamWConfig) -> float:
        """An update is one pass over the numbers."""
        return float(parameter.numel())

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of all parameters that have a gradient."""
        moved = {name: parameter for name, parameter in self._parameters.items() if parameter.grad is not None}
        if not moved:
            return
        states = [self._state.get(name) or self._begin(name) for name in moved]
        weights: list[Tensor] = list(moved.values())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        config = self._config
        options: dict[str, Any] = {
            "amsgrad": False, "lr": lr, "beta1": config.adam_beta1, "beta2": config.adam_beta2,
            "weight_decay": config.weight_decay, "eps": 1e-8, "maximize": False,
        }  # fmt: skip
        decoupled = config.type == "AdamW"
        if self._fused:
            # What torch's function comes to after it has sorted the tensors by kind, which here are of one.
            torch._foreach_add_(steps, 1)
            kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
            kernel(weights, gradients, means, squares, [], steps, **options)
        else:
            adam(
                weights, gradients, means, squares, [], steps,
                foreach=False, fused=False, decoupled_weight_decay=decoupled, **options,
            )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}.{quantity}": value for name, state in self._state.items() for quantity, value in state.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """A parameter without tensors starts anew, as one that never had a gradient."""
        state: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, quantity = key.rpartition(".")
            check_belongs(name, quantity, tensor, self._parameters)
            parameter = self._parameters[name]
            state.setdefault(name, {})[quantity] = tensor.detach().to(parameter.device, copy=True)
        self._state = state

    def _begin(self, name: str) -> dict[str, Tensor]:
        parameter = self._parameters[name]
        self._state[name] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if self._fused else None),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self._state[name]


def check_belongs(name: str, quantity: str, tensor: Tensor, parameters: Mapping[str, Parameter]) -> None:
    """Refuse what was saved of a parameter that the model does not have, or that has another shape there."""
    if name not in parameters:
        raise CheckpointError(f"has optimizer state of a parameter {name!r} that the model does not have")
    shape = parameters[name].shape
    if tensor.ndim and tensor.shape != shape:
        raise CheckpointError(
            f"the optimizer's {quantity} of {name} has shape {tuple(tensor.shape)}, the parameter {tuple(shape)}"
        )
