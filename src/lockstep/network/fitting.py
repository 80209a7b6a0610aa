"""The fitting nets: from descriptors to atomic energies, one net for each type of centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.config import EnergyFittingConfig
from lockstep.network.mlp import MLP, fitting_net
from lockstep.network.precision import torch_dtype


@dataclass(frozen=True)
class FittingTape:
    """What the forward pass leaves behind for `pull_back`: the slopes of each centre type's net."""

    slopes: list[tuple[int, int, list[Tensor]]]


class EnergyFitting(nn.Module):
    """Atomic energies without their bias.

    Frame and atom parameters are brought to zero mean and unit spread and appended to the descriptor. Types with a
    vacuum energy (`atom_ener`) have the net's value for a zero descriptor subtracted, so that an atom without
    neighbours has exactly that energy.
    """

    parameter_mean: Tensor
    parameter_scale: Tensor

    def __init__(
        self, config: EnergyFittingConfig, ntypes: int, dim_descriptor: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.dtype = torch_dtype(config.precision)
        self.dim_descriptor = dim_descriptor
        n_parameters = config.numb_fparam + config.numb_aparam
        self.vacuum = [value is not None for value in config.atom_ener] or [False] * ntypes
        self.nets = nn.ModuleList(
            fitting_net(
                dim_descriptor + n_parameters,
                config.neuron,
                config.activation_function,
                config.resnet_dt,
                self.dtype,
                generator,
            )
            for _ in range(ntypes)
        )
        self.register_buffer("parameter_mean", torch.zeros(n_parameters, dtype=torch.float64))
        self.register_buffer("parameter_scale", torch.ones(n_parameters, dtype=torch.float64))
        self._freeze(config.trainable_layers)

    def net(self, centre_type: int) -> MLP:
        net = self.nets[centre_type]
        assert isinstance(net, MLP)
        return net

    def forward(
        self, descriptor: Tensor, parameters: Tensor | None, blocks: tuple[slice, ...]
    ) -> tuple[Tensor, FittingTape]:
        """Energies [C] of centres whose ranges by type are `blocks`; `parameters` is [C, fparam + aparam]."""
        inputs = descriptor.to(self.dtype)
        if parameters is not None:
            scaled = (parameters - self.parameter_mean) * self.parameter_scale
            inputs = torch.cat([inputs, scaled.to(self.dtype)], dim=1)
        energies, tapes = [], []
        for centre_type, block in enumerate(blocks):
            if block.stop == block.start:
                continue
            value, slopes = self.net(centre_type)(inputs[block])
            if self.vacuum[centre_type]:
                value = value - self._vacuum_value(centre_type, inputs[block])
            energies.append(value.squeeze(1))
            tapes.append((centre_type, block.stop - block.start, slopes))
        return torch.cat(energies), FittingTape(tapes)

    def pull_back(self, tape: FittingTape) -> Tensor:
        """dE/d(descriptor) [C, dim_descriptor] of the sum of all atomic energies."""
        gradients = []
        for centre_type, n_centres, slopes in tape.slopes:
            one = slopes[-1].new_ones(n_centres, 1)
            gradients.append(self.net(centre_type).pull_back(slopes, one)[:, : self.dim_descriptor])
        return torch.cat(gradients)

    def _vacuum_value(self, centre_type: int, inputs: Tensor) -> Tensor:
        if inputs.shape[1] == self.dim_descriptor:
            inputs = inputs[:1]
        away = torch.cat([torch.zeros_like(inputs[:, : self.dim_descriptor]), inputs[:, self.dim_descriptor :]], 1)
        return self.net(centre_type)(away)[0]

    def _freeze(self, trainable: Sequence[bool]) -> None:
        for net in self.nets:
            assert isinstance(net, MLP)
            for layer, flag in zip(net.layers, trainable, strict=True):
                layer.requires_grad_(flag)
