"""An ASE calculator, called as that of DeePMD-kit (`deepmd.calculator.DP`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from numpy.typing import NDArray

from lockstep.data.physical import bad_cell, far_atom
from lockstep.device import visible_gpus
from lockstep.errors import ForeignModelError, UserError
from lockstep.interop.kit import package
from lockstep.interop.loading import load_potential
from lockstep.model import Potential, Prediction
from lockstep.model.potential import Parameters

log = logging.getLogger(__name__)

_VOIGT = ([0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1])
_ELSEWHERE = ("neighbor_list", "head", "nlist_backend")


class DP(Calculator):
    """Energies, forces and stresses of a Deep Potential.

    Frame and atom parameters, where the model has them, are taken from `atoms.info["fparam"]` and `["aparam"]`.

    Args:
        model: a `.dp` model, a checkpoint (file, prefix or folder), or a potential in memory.
        label: ASE's name for the calculator.
        type_dict: number in the model of each chemical symbol; by default the model's own `type_map`.
        device: where to compute, such as `cpu` or `cuda:1`; by default a GPU if there is one.
    """

    potential: Potential
    name = "DP"
    implemented_properties = [  # noqa: RUF012 (ASE declares it so)
        "energy",
        "energies",
        "free_energy",
        "forces",
        "virial",
        "stress",
    ]

    def __new__(cls, model: str | Path | Potential, *args: Any, **kwargs: Any) -> Any:
        """A calculator of DeePMD-kit's own for models that only its classes evaluate."""
        if isinstance(model, Potential):
            return super().__new__(cls)
        try:
            instance = super().__new__(cls)
            instance.potential = load_potential(model)
            return instance
        except ForeignModelError:
            if package.version() is None:
                raise
            from lockstep.interop.kit.files import calculator

            return calculator(model, *args, **kwargs)

    def __init__(
        self,
        model: str | Path | Potential,
        label: str = "DP",
        type_dict: Mapping[str, int] | None = None,
        device: str | None = None,
        **kwargs: Any,
    ) -> None:
        for option in _ELSEWHERE:
            if kwargs.pop(option, None) is not None:
                raise UserError("is not supported by this calculator", where=option, remedy="leave it out")
        super().__init__(label=label, **kwargs)
        potential = model if isinstance(model, Potential) else self.potential
        self.potential = potential.to(device or ("cuda" if visible_gpus() else "cpu"))
        self.type_dict = dict(type_dict or {symbol: t for t, symbol in enumerate(potential.type_map)})
        self._warned = False

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute everything at once: forces cost little beside energies."""
        super().calculate(atoms, properties, system_changes)
        found = self._predict(self.atoms)
        self.results["energy"] = self.results["free_energy"] = found.energy.item()
        self.results["energies"] = found.atom_energy[0].cpu().numpy()
        self.results["forces"] = found.force[0].cpu().numpy()
        virial = self.results["virial"] = found.virial[0].cpu().numpy()
        if self.atoms.pbc.any() and self.atoms.cell.rank == 3:
            self.results["stress"] = -0.5 * (virial + virial.T)[_VOIGT] / self.atoms.get_volume()
        elif "stress" in properties:
            raise PropertyNotImplementedError("stress needs a periodic cell with three lattice vectors")

    def _predict(self, atoms: Atoms) -> Prediction:
        potential, types = self.potential, self._types(atoms)
        cell = periodic_cell(atoms, potential.rcut)
        _refuse_unphysical(atoms.get_positions(), cell)
        cells = None if cell is None else cell[None]
        pairs = potential.find_pairs(atoms.get_positions()[None], cells, types[None])
        self._warn(max(found.dropped for frames in pairs for found in frames))
        slices = potential.environment_builder().slices(pairs, types[None])
        fitting = potential.config.fitting_net
        parameters = Parameters(
            self._parameter("fparam", (1, fitting.numb_fparam)),
            self._parameter("aparam", (1, len(atoms), fitting.numb_aparam)),
        )
        return potential.predict(slices, parameters)

    def _types(self, atoms: Atoms) -> NDArray[np.int64]:
        symbols = atoms.get_chemical_symbols()
        unknown = sorted(set(symbols) - set(self.type_dict))
        if unknown:
            raise UserError(
                f"{', '.join(unknown)} unknown to the model, whose types are {', '.join(self.potential.type_map)}",
                where="atoms",
                remedy="use a model trained with these elements, or map them with type_dict",
            )
        return np.array([self.type_dict[symbol] for symbol in symbols], dtype=np.int64)

    def _parameter(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        if shape[-1] == 0:
            return None
        given = self.atoms.info.get(name)
        if given is None or np.size(given) not in (shape[-1], int(np.prod(shape))):
            raise UserError(
                f"the model needs {shape[-1]} {name} of the {'frame' if name == 'fparam' else 'atoms'}",
                where=f'atoms.info["{name}"]',
                value=given,
                remedy=f'set atoms.info["{name}"] to numbers of shape {shape[1:]}',
            )
        array = np.asarray(given, dtype=np.float64)
        array = np.broadcast_to(array.ravel(), shape) if array.size == shape[-1] else array.reshape(shape)
        return torch.from_numpy(array.copy()).to(self.potential.device)

    def _warn(self, dropped: int) -> None:
        if dropped and not self._warned:
            self._warned = True
            log.warning("sel of the model is too small for these atoms: %d neighbours are left out", dropped)


def _refuse_unphysical(positions: NDArray, cell: NDArray | None) -> None:
    far = far_atom(positions[None]) if len(positions) else None
    if far:
        raise UserError(
            f"atom {far[1]} is at {positions[far[1]].tolist()} Angstrom",
            where="atoms.positions",
            remedy="check the unit",
        )
    bad = None if cell is None else bad_cell(cell[None])
    if bad:
        raise UserError(f"the cell {bad[1]}", where="atoms.cell", remedy="correct the lattice vectors")


def periodic_cell(atoms: Atoms, rcut: float) -> NDArray | None:
    """The cell for a neighbour search that knows all periodic directions or none.

    Directions without periodicity get a lattice vector so long that no image is within the cutoff.
    """
    if not atoms.pbc.any():
        return None
    cell = np.array(atoms.cell.complete())
    if not atoms.cell.any(axis=1)[atoms.pbc].all():
        raise UserError(
            "a periodic direction has no lattice vector",
            where="atoms.cell",
            value=atoms.cell.tolist(),
            remedy="set the cell, or atoms.pbc = False",
        )
    for axis in np.flatnonzero(~atoms.pbc):
        normal = np.cross(cell[axis - 2], cell[axis - 1])
        normal /= np.linalg.norm(normal)
        cell[axis] = normal * (np.ptp(atoms.get_positions() @ normal) + 2.0 * rcut)
    return cell
