"""Descriptor and fitting net as one: atomic energies and their gradient with respect to environment features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.geometry import Features
from lockstep.network.descriptors.se_e2_a import SeE2A
from lockstep.network.fitting import EnergyFitting


@dataclass(frozen=True)
class NetworkOutput:
    """Energies [C] of the centres in float64, and dE/d(features)."""

    energy: Tensor
    gradient: Tensor


class EnergyNetwork(nn.Module):
    """All weights of a potential. What it takes and gives is free of coordinates."""

    bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        ntypes = len(config.type_map)
        self.descriptor = SeE2A(config.descriptor, ntypes, _generator(config.descriptor.seed, role=0))
        self.fitting = EnergyFitting(
            config.fitting_net, ntypes, self.descriptor.dim_out, _generator(config.fitting_net.seed, role=1)
        )
        self.register_buffer("bias", torch.zeros(ntypes, dtype=torch.float64))

    def forward(self, features: Features, parameters: Tensor | None = None) -> NetworkOutput:
        """Energies and their gradient, both by ordinary operations: a loss on either needs one backward pass."""
        x, tape = self.descriptor(features)
        energy, x_gradient = self.fitting(x, self.descriptor.axis, parameters, features.centre_blocks)
        gradient = self.descriptor.pull_back(tape, x_gradient.to(x.dtype))
        return NetworkOutput(energy.to(torch.float64) + self._bias(features), gradient)

    def _bias(self, features: Features) -> Tensor:
        return torch.cat(
            [self.bias[t].expand(block.stop - block.start) for t, block in enumerate(features.centre_blocks)]
        )


def _generator(seed: int | list[int] | None, role: int) -> torch.Generator:
    """A generator for one part's initial weights; parts with the same seed still draw different numbers."""
    entropy = None if seed is None else [role, *([seed] if isinstance(seed, int) else seed)]
    return torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
