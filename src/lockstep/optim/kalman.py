"""A Kalman filter as an optimizer: it remembers how uncertain the weights are, and moves the uncertain ones most.

Weights are what is estimated, an energy or a few forces what is measured. The covariance of all weights would be a
matrix with as many rows as there are weights; here it is cut into blocks along its diagonal. What all blocks have in
common is the gain: one number, by which an error is distributed among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep.errors import CheckpointError

_MEMORY = "memory"
"""The name of the one number of the state that is no covariance."""


class KalmanFilter:
    """Updates `parameters` by their gradients and by the error of what was measured, both the same on all ranks.

    Every rank does the same: the covariances are there on each of them.

    Args:
        parameters: all that are trained.
        block_size: the most weights that one block of the covariance connects.
        memory: what an update leaves of earlier measurements, in the beginning.
        growth: how slowly that comes near to one; exactly one leaves it as it is.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], block_size: int, memory: float = 0.98, growth: float = 0.9987
    ) -> None:
        self._parameters, self._memory, self._growth = list(parameters.values()), memory, growth
        self._blocks = list(blocks_of([parameter.numel() for parameter in self._parameters], block_size))
        like = self._parameters[0]
        self._covariances = [torch.eye(n, dtype=like.dtype, device=like.device) for n in map(sum, self._blocks)]

    @staticmethod
    def bytes_needed(parameters: Mapping[str, Parameter], block_size: int) -> int:
        """How large all covariances are together."""
        width = next(iter(parameters.values())).element_size()
        sizes = [parameter.numel() for parameter in parameters.values()]
        return sum(width * sum(pieces) ** 2 for pieces in blocks_of(sizes, block_size))

    @torch.no_grad()
    def step(self, error: Tensor) -> None:
        """One update, after `error`, by how much the measured quantity exceeds the predicted one.

        The gradients are those of the predicted quantity.
        """
        slopes = self._cut([_column(_gradient(parameter)) for parameter in self._parameters])
        gains = [covariance @ slope for covariance, slope in zip(self._covariances, slopes, strict=True)]
        uncertain = torch.stack([slope @ gain for slope, gain in zip(slopes, gains, strict=True)]).sum()
        factor = 1.0 / (uncertain + self._memory * len(gains))
        for covariance, gain in zip(self._covariances, gains, strict=True):
            covariance.addr_(gain * (factor / self._memory), gain, beta=1.0 / self._memory, alpha=-1.0)
        changes = torch.cat(gains).mul_(factor * error).split([parameter.numel() for parameter in self._parameters])
        for parameter, change in zip(self._parameters, changes, strict=True):
            parameter.add_(_as_column_of(parameter, change))
        self._memory = self._growth * self._memory + 1.0 - self._growth

    def tensors(self) -> dict[str, Tensor]:
        """The state, as `covariance.<block>` and one number."""
        found = {f"covariance.{number}": covariance for number, covariance in enumerate(self._covariances)}
        return found | {_MEMORY: torch.tensor(self._memory, dtype=torch.float64)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` gave, bit for bit."""
        expected = self.tensors()
        if tensors.keys() != expected.keys() or any(tensors[key].shape != expected[key].shape for key in expected):
            raise CheckpointError(
                f"has no Kalman filter of {len(self._blocks)} blocks like this one",
                remedy="keep model and optimizer.kf_blocksize as they were",
            )
        for number, covariance in enumerate(self._covariances):
            covariance.copy_(tensors[f"covariance.{number}"])
        self._memory = float(tensors[_MEMORY])

    def _cut(self, columns: list[Tensor]) -> list[Tensor]:
        return list(torch.cat(columns).split([sum(pieces) for pieces in self._blocks]))


def blocks_of(sizes: list[int], block_size: int) -> Iterator[list[int]]:
    """Pieces of parameters of these sizes for each block, in their order.

    Small parameters fill a block together; one that is larger than a block has blocks of its own.
    """
    together: list[int] = []
    for size in sizes:
        if together and sum(together) + size > block_size:
            yield together
            together = []
        if size <= block_size:
            together.append(size)
            continue
        yield from ([min(block_size, size - begin)] for begin in range(0, size, block_size))
    if together:
        yield together


def _gradient(parameter: Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _column(matrix: Tensor) -> Tensor:
    """All numbers, column by column, as DeePMD-kit has them."""
    return matrix.permute(*reversed(range(matrix.ndim))).reshape(math.prod(matrix.shape))


def _as_column_of(matrix: Tensor, column: Tensor) -> Tensor:
    """The other way round."""
    return column.reshape(*reversed(matrix.shape)).permute(*reversed(range(matrix.ndim)))
