"""A Deep Potential: environment rows in, energies, forces and virials out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.geometry import Cutoff, Environment, EnvironmentBuilder, RowScale, find_pairs
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

    row_mean: Tensor
    row_std_radial: Tensor
    row_std_angular: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.network = EnergyNetwork(config)
        self.scale = RowScale.unit(len(config.type_map))

    @property
    def type_map(self) -> tuple[str, ...]:
        return self.config.type_map

    @property
    def cutoff(self) -> Cutoff:
        descriptor = self.config.descriptor
        assert isinstance(descriptor.sel, tuple), "`sel` is settled before the potential is built"
        return Cutoff(
            rcut=descriptor.rcut,
            rcut_smth=descriptor.rcut_smth,
            sel=descriptor.sel,
            exclude=frozenset((a, b) for a, b in descriptor.exclude_types),
            protection=descriptor.env_protection,
        )

    @property
    def scale(self) -> RowScale:
        """Mean and spread of the environment rows, saved with the weights."""
        return RowScale(self.row_mean, self.row_std_radial, self.row_std_angular)

    @scale.setter
    def scale(self, scale: RowScale) -> None:
        self.register_buffer("row_mean", scale.mean.clone())
        self.register_buffer("row_std_radial", scale.std_radial.clone())
        self.register_buffer("row_std_angular", scale.std_angular.clone())

    @property
    def device(self) -> torch.device:
        return self.row_mean.device

    def environment_builder(self) -> EnvironmentBuilder:
        return EnvironmentBuilder(self.cutoff, self.scale, self.device, self.network.descriptor.dtype)

    def forward(self, environment: Environment, parameters: Parameters | None = None) -> Prediction:
        per_centre = parameters.per_centre(environment) if parameters else None
        output = self.network(environment.features, per_centre)
        force, virial = forces_and_virial(output.gradient, environment)
        atoms = output.energy.new_zeros(environment.n_frames * environment.n_atoms)
        atom_energy = atoms.index_copy(0, environment.atom, output.energy)
        atom_energy = atom_energy.view(environment.n_frames, environment.n_atoms)
        return Prediction(atom_energy.sum(dim=1), atom_energy, force, virial)

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
        pairs = [
            find_pairs(coord[b], None if cell is None else np.asarray(cell[b], dtype=np.float64), t, self.cutoff)
            for b, t in enumerate(types)
        ]
        environment = self.environment_builder().build(pairs, types)
        parameters = Parameters(self._optional(fparam), self._optional(aparam))
        prediction: Prediction = self(environment, parameters)
        return prediction

    def _optional(self, array: NDArray | None) -> Tensor | None:
        return None if array is None else torch.as_tensor(array, dtype=torch.float64, device=self.device)
