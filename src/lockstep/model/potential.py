"""A Deep Potential: environment rows in, energies, forces and virials out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.geometry import Environment, EnvironmentBuilder, Pairs, RowScale, find_pairs
from lockstep.geometry.transpose import forces_and_virial
from lockstep.network import EnergyNetwork


@dataclass(frozen=True)
class Prediction:
    """What a potential says about a micro-batch, in eV and Angstrom, float64.

    Attributes:
        energy: [B] total energies.
        atom_energy: [B, n] their atomic shares.
        force: [B, n, 3].
        virial: [B, 3, 3], minus the derivative of the energy with respect to strain.
    """

    energy: Tensor
    atom_energy: Tensor
    force: Tensor
    virial: Tensor


@dataclass(frozen=True)
class Parameters:
    """Frame parameters [B, numb_fparam] and atom parameters [B, n, numb_aparam], where the model asks for them."""

    frame: Tensor | None = None
    atom: Tensor | None = None

    def per_centre(self, environment: Environment) -> Tensor | None:
        """One row for each centre, in the order of the fitting net's input."""
        parts = []
        if self.frame is not None:
            parts.append(self.frame[environment.atom // environment.n_atoms])
        if self.atom is not None:
            parts.append(self.atom.flatten(0, 1)[environment.atom])
        return torch.cat(parts, dim=1) if parts else None


class Potential(nn.Module):
    """A network, and the constants of the geometry it was made for.

    `config` is the `model` section of the input with `sel` settled to numbers.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.network = EnergyNetwork(config)
        ntypes = len(config.type_map)
        self.cutoffs = config.descriptor.cutoffs(ntypes)
        self.scales = tuple(RowScale.unit(ntypes) for _ in self.cutoffs)

    @property
    def type_map(self) -> tuple[str, ...]:
        return self.config.type_map

    @property
    def scales(self) -> tuple[RowScale, ...]:
        """Mean and spread of the environment rows of each cutoff, saved with the weights."""
        return tuple(
            RowScale(*(getattr(self, name) for name in _row_names(number))) for number in range(len(self.cutoffs))
        )

    @scales.setter
    def scales(self, scales: Sequence[RowScale]) -> None:
        for number, scale in enumerate(scales):
            columns = (scale.mean, scale.std_radial, scale.std_angular)
            for name, column in zip(_row_names(number), columns, strict=True):
                self.register_buffer(name, column.clone())

    @property
    def rcut(self) -> float:
        """The longest of the cutoffs in Angstrom."""
        return max(cutoff.rcut for cutoff in self.cutoffs)

    @property
    def device(self) -> torch.device:
        return self.network.bias.device

    def environment_builder(self) -> EnvironmentBuilder:
        return EnvironmentBuilder(self.cutoffs, self.scales, self.network.descriptor.views, self.device)

    def find_pairs(self, coord: NDArray, cell: NDArray | None, types: NDArray) -> list[list[Pairs]]:
        """The neighbours in frames given as arrays, [cutoff][frame]: coord [B, n, 3], cell [B, 3, 3] or None."""
        return [
            [find_pairs(coord[b], None if cell is None else cell[b], t, cutoff) for b, t in enumerate(types)]
            for cutoff in self.cutoffs
        ]

    def forward(self, environment: Environment, parameters: Parameters | None = None) -> Prediction:
        if not len(environment.atom):
            return self._nothing(environment)
        per_centre = parameters.per_centre(environment) if parameters else None
        output = self.network(environment.features, per_centre)
        force, virial = forces_and_virial(output.gradients, environment)
        atoms = output.energy.new_zeros(environment.n_frames * environment.n_atoms)
        atom_energy = atoms.index_copy(0, environment.atom, output.energy)
        atom_energy = atom_energy.view(environment.n_frames, environment.n_atoms)
        return Prediction(atom_energy.sum(dim=1), atom_energy, force, virial)

    def _nothing(self, environment: Environment) -> Prediction:
        """The share of a rank that has no centre: zero, but with a way back, as every share has."""
        weight = next((p for p in self.parameters() if p.requires_grad), self.network.bias)
        zero = (weight.sum() * 0.0).to(torch.float64)
        shape = (environment.n_frames, environment.n_atoms)
        return Prediction(
            zero.expand(shape[0]), zero.expand(shape), zero.expand(*shape, 3), zero.expand(shape[0], 3, 3)
        )

    @torch.no_grad()
    def evaluate(
        self,
        coord: NDArray,
        cell: NDArray | None,
        types: NDArray,
        fparam: NDArray | None = None,
        aparam: NDArray | None = None,
    ) -> Prediction:
        """Evaluate frames given as arrays: coord [B, n, 3], cell [B, 3, 3] or None, types [B, n]."""
        coord = np.asarray(coord, dtype=np.float64)
        cell = None if cell is None else np.asarray(cell, dtype=np.float64)
        environment = self.environment_builder().build(self.find_pairs(coord, cell, types), types)
        parameters = Parameters(self._optional(fparam), self._optional(aparam))
        prediction: Prediction = self(environment, parameters)
        return prediction

    def _optional(self, array: NDArray | None) -> Tensor | None:
        return None if array is None else torch.as_tensor(array, dtype=torch.float64, device=self.device)


def _row_names(cutoff: int) -> tuple[str, str, str]:
    """The names under which the constants of a cutoff are saved; those of the only one have no number."""
    suffix = f"_{cutoff}" if cutoff else ""
    return f"row_mean{suffix}", f"row_std_radial{suffix}", f"row_std_angular{suffix}"
