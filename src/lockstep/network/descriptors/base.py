"""What every descriptor is: sums over a centre's neighbours, and the way from dE/d(sums) back to dE/d(features)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.geometry import Features, View
from lockstep.network.contraction import Contraction
from lockstep.network.mlp import MLP


@dataclass(frozen=True)
class Embedding:
    """An embedding net for one pair of types: a function of one radial number.

    Attributes:
        tail: the rest of the net's input, the same for all neighbours.
        factor: what the net's value is multiplied by, component by component.
    """

    net: MLP
    tail: Tensor | None = None
    factor: Tensor | None = None

    def __call__(self, radial: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The value [n, width] at radial numbers [n, 1], and what `pull_back` needs."""
        value, slopes = self.net(self._inputs(radial))
        return value if self.factor is None else value * self.factor.to(value.dtype), slopes

    def pull_back(self, slopes: list[Tensor], gradient: Tensor) -> Tensor:
        """dE/d(radial) [n, 1] from dE/d(value)."""
        if self.factor is not None:
            gradient = gradient * self.factor.to(gradient.dtype)
        return self.net.pull_back(slopes, gradient)[:, :1]

    def push_forward(self, radial: Tensor) -> tuple[Tensor, Tensor]:
        """The value and its slope by the radial number."""
        inputs = self._inputs(radial)
        along = torch.zeros_like(inputs)
        along[:, 0] = 1.0
        value, slope = self.net.push_forward(inputs, along)
        if self.factor is None:
            return value, slope
        factor = self.factor.to(value.dtype)
        return value * factor, slope * factor

    def _inputs(self, radial: Tensor) -> Tensor:
        if self.tail is None:
            return radial
        return torch.cat([radial, self.tail.to(radial.dtype).expand(radial.shape[0], -1)], dim=1)


class Descriptor(nn.Module, ABC):
    """The part of a network between environment features and the fitting net.

    Attributes:
        views: how it wants to see the neighbours; its features come in this order.
        contraction: from its sums X to what the fitting net sees.
        mixed_types: one fitting net is to serve all types of centres, because X tells their types.
        dtype: precision of X.
    """

    views: tuple[View, ...]
    contraction: Contraction
    mixed_types: bool = False
    dtype: torch.dtype

    @property
    def dim_out(self) -> int:
        return self.contraction.n_out

    @abstractmethod
    def forward(self, features: Sequence[Features]) -> tuple[Tensor, Any]:
        """The sums X [C, ...] over the neighbours of all centres, and a tape for `pull_back`."""

    @abstractmethod
    def pull_back(self, tape: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """dE/d(features) of each view from dE/dX."""

    @abstractmethod
    def embeddings(self, cutoff: int, centre_type: int, types: Sequence[int]) -> Iterator[Embedding]:
        """The functions that are expanded in splines for centres of a type and neighbours of some types."""
