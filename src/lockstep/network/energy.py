"""Descriptor and fitting net as one: atomic energies and their gradient with respect to environment features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.geometry import Features
from lockstep.network.descriptors import make_descriptor
from lockstep.network.fitting import EnergyFitting


@dataclass(frozen=True)
class NetworkOutput:
    """Energies [C] of the centres in float64, and dE/d(features) of each view."""

    energy: Tensor
    gradients: tuple[Tensor, ...]


class EnergyNetwork(nn.Module):
    """All weights of a potential. What it takes and gives is free of coordinates."""

    bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        ntypes = len(config.type_map)
        self.descriptor = make_descriptor(
            config.descriptor, config.type_map, _generator(config.descriptor.seeds(), role=0)
        )
        self.fitting = EnergyFitting(
            config.fitting_net,
            ntypes,
            self.descriptor.contraction,
            _generator(config.fitting_net.seed, role=1),
            self.descriptor.mixed_types,
        )
        self.register_buffer("bias", torch.zeros(ntypes, dtype=torch.float64))

    def forward(self, features: Sequence[Features], parameters: Tensor | None = None) -> NetworkOutput:
        """Energies and their gradient, both by ordinary operations: a loss on either needs one backward pass."""
        x, tape = self.descriptor(features)
        centre_blocks = features[0].centre_blocks
        energy, x_gradient = self.fitting(x, parameters, centre_blocks)
        gradients = self.descriptor.pull_back(tape, x_gradient.to(x.dtype))
        return NetworkOutput(energy.to(torch.float64) + self._bias(centre_blocks), gradients)

    def _bias(self, centre_blocks: tuple[slice, ...]) -> Tensor:
        return torch.cat([self.bias[t].expand(block.stop - block.start) for t, block in enumerate(centre_blocks)])


def _generator(seed: int | list[int] | None, role: int) -> torch.Generator:
    """A generator for one part's initial weights; parts with the same seed still draw different numbers."""
    entropy = None if seed is None else [role, *([seed] if isinstance(seed, int) else seed)]
    return torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
