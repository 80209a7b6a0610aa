"""SOAP: Adam in the eigenbasis of each weight matrix's own gradient covariances.

N. Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, arXiv 2409.11321. Gradients of a matrix are strongly
correlated among its rows and columns. Adam, which looks at every entry by itself, cannot see that; in the basis where
these correlations vanish it can take a step of the right length along each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.config.optimizer import AdamWConfig
from lockstep.errors import CheckpointError
from lockstep.optim.adam import Adam
from lockstep.optim.damped import Damping, direction, move
from lockstep.optim.eigenbasis import Side

if TYPE_CHECKING:
    from lockstep.config.optimizer import SoapConfig

log = logging.getLogger(__name__)

EARLY = 5
"""Steps in which the bases are refreshed every time: the first gradient says little of those to come."""


class Soap:
    """SOAP for weight matrices, AdamW for everything else: biases, time steps, and matrices that are nearly vectors.

    Args:
        parameters: all that are trained.
        own: names of those that this rank updates. Nothing about an update depends on which these are.
    """

    def __init__(self, parameters: Mapping[str, Parameter], config: SoapConfig, own: Collection[str]) -> None:
        matrices = [name for name, parameter in parameters.items() if is_matrix(parameter, config)]
        rooms = _rooms([parameters[name] for name in matrices if name in own])
        self._matrices = {
            name: _Matrix(name, parameters[name], config, turn, rooms)
            for turn, name in enumerate(matrices)
            if name in own
        }
        self._rate_factor = config.rate_factor
        _tell(parameters, matrices, config.min_side)
        rest = AdamWConfig(adam_beta1=config.adam_beta1, adam_beta2=config.adam_beta2, weight_decay=config.weight_decay)
        self._rest = Adam(parameters, rest, [name for name in own if name not in self._matrices])

    @staticmethod
    def cost(parameter: Parameter, config: SoapConfig) -> float:
        """About how many multiplications an update takes."""
        sides = sides_of(parameter, config) if is_matrix(parameter, config) else {}
        return parameter.numel() * (10.0 + sum(2.5 * parameter.shape[side] / blocks for side, blocks in sides.items()))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update of all own parameters that have a gradient."""
        lr *= self._rate_factor
        self._rest.step(lr)
        for matrix in self._matrices.values():
            matrix.step(lr)

    def tensors(self) -> dict[str, Tensor]:
        tensors = self._rest.tensors()
        for name, matrix in self._matrices.items():
            tensors |= {f"{name}.{quantity}": tensor for quantity, tensor in matrix.tensors().items()}
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """A parameter without tensors starts anew, as one that never had a gradient."""
        of_matrices: dict[str, dict[str, Tensor]] = {name: {} for name in self._matrices}
        rest = {}
        for key, tensor in tensors.items():
            name, _, quantity = key.rpartition(".")
            if name in of_matrices:
                of_matrices[name][quantity] = tensor
            else:
                rest[key] = tensor
        self._rest.load(rest)
        for name, matrix in self._matrices.items():
            matrix.load(of_matrices[name])


def _tell(parameters: Mapping[str, Parameter], matrices: Sequence[str], least: int) -> None:
    served = sum(parameters[name].numel() for name in matrices)
    rest = sum(parameter.numel() for parameter in parameters.values()) - served
    log.log(
        logging.INFO if matrices else logging.WARNING,
        "optimizer: SOAP for %d matrices with %d weights, AdamW at the same rate for %d%s",
        len(matrices),
        served,
        rest,
        "" if matrices else f": no matrix has {least} rows and columns, and all of it is AdamW",
    )


def is_matrix(parameter: Parameter, config: SoapConfig) -> bool:
    """Whether a parameter has rows and columns enough for their correlations to matter."""
    return parameter.ndim == 2 and min(parameter.shape) >= config.min_side and bool(sides_of(parameter, config))


def sides_of(parameter: Parameter, config: SoapConfig) -> dict[int, int]:
    """The sides that are short enough for bases of their own, and how many blocks each is cut into."""
    lengths = dict(enumerate(parameter.shape))
    return {side: -(-n // config.max_block) for side, n in lengths.items() if n <= config.max_side}


def _rooms(matrices: Sequence[Parameter]) -> Tensor:
    """Room for two matrices to compute in: memory that is fresh in every step costs as much as the arithmetic on it.

    They all use the same, one after the other, and find it in the cache.
    """
    largest = max((matrix.numel() for matrix in matrices), default=0)
    return torch.empty(2, largest, dtype=torch.float32, device=matrices[0].device if matrices else None)


class _Matrix:
    """One weight matrix, its moments in the eigenbases, and the bases of each side.

    All of it is float32, whatever the weights are: directions need no more digits.
    """

    def __init__(self, name: str, parameter: Parameter, config: SoapConfig, turn: int, rooms: Tensor) -> None:
        self._name, self._parameter, self._config, self._turn = name, parameter, config, turn
        self._damping = Damping(config.beta1, config.beta2, config.epsilon, config.damping)
        # Also on the host, because what is due in a step must not wait for the device.
        self._count = 0
        self._state: dict[str, Tensor] = {}
        self._sides: list[Side] = []
        self._rooms = rooms[:, : parameter.numel()].view(2, *parameter.shape)

    def step(self, lr: float) -> None:
        if self._parameter.grad is None:
            return
        gradient = self._rooms[0].copy_(self._parameter.grad)
        if not self._state:
            self._begin(gradient)
            return
        self._count += 1
        self._state["step"] += 1
        if self._count % self._config.factor_frequency == 0 or self._count < EARLY:
            decay = self._config.factor_decay ** (1 if self._count < EARLY else self._config.factor_frequency)
            for side in self._sides:
                side.observe(gradient, decay)
        self._move(lr)
        if (self._count + self._turn) % self._config.frequency == 0 or self._count < EARLY:
            self._refresh()

    def tensors(self) -> dict[str, Tensor]:
        return self._state | {k: t for side in self._sides for k, t in side.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._count, self._state, self._sides = 0, {}, []
        if not tensors:
            return
        shape = self._parameter.shape
        device = self._parameter.device
        copies = {quantity: tensor.detach().to(device, copy=True) for quantity, tensor in tensors.items()}
        sides = sides_of(self._parameter, self._config)
        expected = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
        for side, blocks in sides.items():
            expected |= Side.shapes(side, blocks, shape[side])
        found = {quantity: tensor.shape for quantity, tensor in copies.items()}
        if found != expected:
            raise CheckpointError(
                f"the optimizer's state of {self._name} is {_listed(found)}, expected {_listed(expected)}",
                remedy="go on with the optimizer section of that run (max_block: 512, if it had no such key), or"
                " begin from its weights: --init-model",
            )
        self._sides = [Side.restored(side, blocks, copies) for side, blocks in sides.items()]
        self._state = {quantity: copies[quantity] for quantity in ("step", "exp_avg", "exp_avg_sq")}
        self._count = int(copies["step"].item())

    def _begin(self, gradient: Tensor) -> None:
        """The first gradient gives the first bases, and moves nothing: in its own basis it has no spread at all."""
        sides = sides_of(self._parameter, self._config)
        self._sides = [Side.first(side, gradient, n, self._config.factor_decay) for side, n in sides.items()]
        self._state = {
            "step": torch.zeros((), dtype=torch.float32, device=gradient.device),
            "exp_avg": torch.zeros_like(gradient),
            "exp_avg_sq": torch.zeros_like(gradient),
        }

    def _move(self, lr: float) -> None:
        """An Adam step in the eigenbasis, along the gradient that is in the first room."""
        config, state = self._config, self._state
        here, there = self._rooms
        for side in self._sides:
            here, there = side.into(here, out=there), here
        step, factor = direction(here, state["exp_avg"], state["exp_avg_sq"], self._damping, room=there)
        for side in self._sides:
            step, here = side.out_of(step, out=here), step
        # Both moments' bias corrections are one factor of the rate.
        corrected = lr * (1 - config.beta2**self._count) ** 0.5 / (1 - config.beta1**self._count)
        move(self._parameter.detach(), 1 - lr * config.weight_decay, step, corrected * factor)

    def _refresh(self) -> None:
        """Let the bases follow the factors; the moments go along."""
        for side in self._sides:
            side.refresh(self._state["exp_avg"], self._state["exp_avg_sq"])


def _listed(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in sorted(shapes.items())) or "nothing"
