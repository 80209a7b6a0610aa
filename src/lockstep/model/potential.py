"""A Deep Potential: environment rows in, energies, forces and virials out."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.geometry import Environment, EnvironmentBuilder, Pairs, RowScale, find_pairs
from lockstep.geometry.transpose import forces_and_virial
from lockstep.network import EnergyNetwork

SLICE_MEMORY = 2 << 30
"""Bytes that the arrays of a frame may take at once: larger ones are worked through in slices of their centres."""
_KEPT, _BYTES = 5, 8
"""Arrays that are kept of each layer, and bytes of a number."""


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

    def __add__(self, other: Prediction) -> Prediction:
        """Of two slices of the same frames, each with centres of its own."""
        return Prediction(
            self.energy + other.energy,
            self.atom_energy + other.atom_energy,
            self.force + other.force,
            self.virial + other.virial,
        )


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
        return EnvironmentBuilder(
            self.cutoffs, self.scales, self.network.descriptor.views, self.device, self._centres_at_once()
        )

    def _centres_at_once(self) -> tuple[int, int]:
        """How many centres fit into `SLICE_MEMORY` with exact nets, and with their expansion in splines.

        Counted are the arrays that a step keeps for its way back: of a layer the values, the slopes, and what is
        derived by each; of the exact nets one such row for each slot.
        """
        parts = zip(self.cutoffs, self.config.descriptor.parts(), strict=True)
        rows = sum(cutoff.n_slots * _KEPT * sum(part.neuron) for cutoff, part in parts)
        layers = _KEPT * (self.network.descriptor.dim_out + sum(self.config.fitting_net.neuron))
        return _fitting(layers + rows), _fitting(layers)

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

    def parameters_in(self, labels: Mapping[str, NDArray | Tensor]) -> Parameters:
        """What the model asks for among the arrays of a micro-batch."""
        fitting = self.config.fitting_net
        return Parameters(
            self._optional(labels["fparam"] if fitting.numb_fparam else None),
            self._optional(labels["aparam"] if fitting.numb_aparam else None),
        )

    @torch.no_grad()
    def predict(self, slices: Iterable[Environment], parameters: Parameters | None = None) -> Prediction:
        """The prediction for a micro-batch that comes in slices, of which one is held at a time."""
        return reduce(operator.add, (self(environment, parameters) for environment in slices))

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
        slices = self.environment_builder().slices(self.find_pairs(coord, cell, types), types)
        return self.predict(slices, Parameters(self._optional(fparam), self._optional(aparam)))

    def _optional(self, array: NDArray | Tensor | None) -> Tensor | None:
        return None if array is None else torch.as_tensor(array, dtype=torch.float64, device=self.device)


def _fitting(numbers: int) -> int:
    return max(1, SLICE_MEMORY // (_BYTES * numbers))


def _row_names(cutoff: int) -> tuple[str, str, str]:
    """The names under which the constants of a cutoff are saved; those of the only one have no number."""
    suffix = f"_{cutoff}" if cutoff else ""
    return f"row_mean{suffix}", f"row_std_radial{suffix}", f"row_std_angular{suffix}"
