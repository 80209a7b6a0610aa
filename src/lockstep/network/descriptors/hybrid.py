"""`hybrid`: descriptors side by side, each with its own cutoff. Forces add up, because the energy's gradients do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.config import HybridConfig
from lockstep.geometry import Features
from lockstep.network.contraction import SideBySide
from lockstep.network.descriptors.base import Descriptor, Embedding


class Hybrid(Descriptor):
    """The sums of all members, flat, one after the other.

    Args:
        make: what makes a member.
    """

    def __init__(
        self,
        config: HybridConfig,
        type_map: Sequence[str],
        generator: torch.Generator,
        make: Callable[..., Descriptor],
    ) -> None:
        super().__init__()
        members = [make(part, type_map, generator) for part in config.parts()]
        self.members = nn.ModuleList(members)
        self.views = tuple(
            replace(view, cutoff=number) for number, member in enumerate(members) for view in member.views
        )
        self.contraction = SideBySide([member.contraction for member in members])
        self.mixed_types = any(member.mixed_types for member in members)
        self.dtype = max((member.dtype for member in members), key=lambda dtype: dtype.itemsize)

    def forward(self, features: Sequence[Features]) -> tuple[Tensor, Any]:
        sums, tapes, first = [], [], 0
        for member in self._members():
            x, tape = member(features[first : first + len(member.views)])
            first += len(member.views)
            sums.append(x.flatten(1).to(self.dtype))
            tapes.append((tape, x.shape, x.dtype))
        return torch.cat(sums, dim=1), tapes

    def pull_back(self, tape: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        pieces = gradient.split([shape[1:].numel() for _, shape, _ in tape], dim=1)
        gradients: list[Tensor] = []
        for member, (own, shape, dtype), piece in zip(self._members(), tape, pieces, strict=True):
            gradients += member.pull_back(own, piece.reshape(shape).to(dtype))
        return tuple(gradients)

    def embeddings(self, cutoff: int, centre_type: int, types: Sequence[int]) -> Iterator[Embedding]:
        return self._members()[cutoff].embeddings(0, centre_type, types)

    def _members(self) -> list[Descriptor]:
        return [member for member in self.members if isinstance(member, Descriptor)]
