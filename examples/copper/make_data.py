#!/usr/bin/env python3
"""Make the bulk-copper data set of this example.

Langevin molecular dynamics of a 32-atom fcc supercell with the effective-medium-theory (EMT) potential of
ASE, at four temperatures and in a number of cells.  ``train_0`` holds cubic cells under isotropic strain,
``train_1`` sheared (triclinic) cells, and ``validation`` both kinds, from trajectories and cells of its own.
The frames are written as DeePMD-kit ``deepmd/npy`` systems; ``train_1`` is written a second time as the group
``/train_1`` of ``copper.hdf5``.

Requirements: ``pip install ase h5py numpy``.  Takes a minute or two on one core::

    python make_data.py                 # write to ./data
    python make_data.py --check         # finite-difference checks and neighbour counts of the written data
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.md.langevin import Langevin
from ase.neighborlist import neighbor_list

TEMPERATURES = (300.0, 600.0, 1000.0, 1300.0)  # K
LATTICE_CONSTANT = 3.61  # Angstrom
TIMESTEP_FS = 4.0
EQUILIBRATION_STEPS = 150
SPACING_STEPS = 75
RCUT = 6.0  # Angstrom; the cutoff of the example's input, for the neighbour counts


def isotropic(strain: float) -> np.ndarray:
    """The deformation of a cell that is stretched alike in all directions."""
    return np.eye(3) * (1.0 + strain)


def shear(yz: float, xz: float, xy: float, strain: float = 0.0) -> np.ndarray:
    """The deformation of a sheared cell with an isotropic strain."""
    return isotropic(strain) + np.array([[0.0, 0.0, 0.0], [xy, 0.0, 0.0], [xz, yz, 0.0]])


@dataclass(frozen=True)
class SystemPlan:
    """One system: its cells (as deformations of the cubic one) and snapshots per cell and temperature."""

    name: str
    deformations: tuple[np.ndarray, ...]
    snapshots: int


PLAN = (
    SystemPlan("train_0", tuple(isotropic(s) for s in (-0.03, -0.01, 0.0, 0.015, 0.03)), 3),
    SystemPlan(
        "train_1",
        (
            shear(0.06, 0.0, 0.0),
            shear(0.0, -0.05, 0.03),
            shear(0.04, 0.04, 0.04, 0.01),
            shear(0.0, 0.0, -0.08, 0.02),
            shear(-0.03, 0.06, 0.0, -0.02),
        ),
        3,
    ),
    SystemPlan(
        "validation",
        (isotropic(-0.02), isotropic(0.01), shear(0.05, 0.0, -0.02), shear(-0.04, 0.03, 0.05, 0.015)),
        2,
    ),
)


def supercell(deformation: np.ndarray) -> Atoms:
    """The 2 x 2 x 2 cubic supercell with its cell and atoms deformed."""
    atoms = bulk("Cu", "fcc", a=LATTICE_CONSTANT, cubic=True) * (2, 2, 2)
    atoms.set_cell(atoms.cell[:] @ deformation, scale_atoms=True)
    return atoms


def thermal_velocities(atoms: Atoms, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """Velocities drawn from the Maxwell-Boltzmann distribution."""
    masses = atoms.get_masses()[:, None]
    return rng.standard_normal((len(atoms), 3)) * np.sqrt(units.kB * temperature / masses)


def trajectory(atoms: Atoms, temperature: float, snapshots: int, rng: np.random.Generator) -> list[Atoms]:
    """Snapshots of a constant-volume run, in time order."""
    atoms.calc = EMT()
    atoms.set_velocities(thermal_velocities(atoms, 2 * temperature, rng))  # half goes into potential energy
    dynamics = Langevin(
        atoms,
        TIMESTEP_FS * units.fs,
        temperature_K=temperature,
        friction=0.02 / units.fs,
        fixcm=False,
        rng=rng,
    )
    dynamics.run(EQUILIBRATION_STEPS)
    frames = []
    for _ in range(snapshots):
        dynamics.run(SPACING_STEPS)
        frames.append(atoms.copy())
    return frames


def label(coord: np.ndarray, cell: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Energy (eV), forces (eV/Angstrom) and virial (eV) of a frame."""
    atoms = make_atoms(coord, cell)
    virial = -atoms.get_stress(voigt=False) * atoms.get_volume()
    return atoms.get_potential_energy(), atoms.get_forces(), virial


def make_atoms(coord: np.ndarray, cell: np.ndarray) -> Atoms:
    """The frame as ASE atoms with the EMT calculator."""
    atoms = Atoms(f"Cu{len(coord)}", positions=coord, cell=cell, pbc=True)
    atoms.calc = EMT()
    return atoms


def make_arrays(plan: SystemPlan, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of one system, named as in ``deepmd/npy``."""
    frames = [
        frame
        for deformation in plan.deformations
        for temperature in TEMPERATURES
        for frame in trajectory(supercell(deformation), temperature, plan.snapshots, rng)
    ]
    # The labels are those of the single-precision coordinates and cells that are stored.
    coord = np.array([frame.positions for frame in frames], dtype=np.float32)
    box = np.array([frame.cell[:] for frame in frames], dtype=np.float32)
    labels = [label(c.astype(np.float64), b.astype(np.float64)) for c, b in zip(coord, box, strict=True)]
    energy, force, virial = (np.array(column) for column in zip(*labels, strict=True))
    count = len(frames)
    return {
        "coord": coord.reshape(count, -1),
        "box": box.reshape(count, 9),
        "energy": energy,
        "force": force.reshape(count, -1).astype(np.float32),
        "virial": virial.reshape(count, 9).astype(np.float32),
    }


def write_npy(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write one ``deepmd/npy`` system."""
    target = folder / "set.000"
    target.mkdir(parents=True, exist_ok=True)
    n_atoms = arrays["coord"].shape[1] // 3
    (folder / "type.raw").write_text("0\n" * n_atoms)
    (folder / "type_map.raw").write_text("Cu\n")
    for name, array in arrays.items():
        np.save(target / f"{name}.npy", array)


def write_hdf5(path: Path, group: str, arrays: dict[str, np.ndarray]) -> None:
    """Write one ``deepmd/hdf5`` system: the same names, as data sets of a group."""
    import h5py

    n_atoms = arrays["coord"].shape[1] // 3
    with h5py.File(path, "w") as file:
        system = file.create_group(group)
        system.create_dataset("type.raw", data=np.zeros(n_atoms, dtype=np.int64))
        system.create_dataset("type_map.raw", data=np.array([b"Cu"]))
        for name, array in arrays.items():
            system.create_dataset(f"set.000/{name}.npy", data=array)


def write(out: Path, seed: int) -> None:
    """Make and write all systems, and print a summary."""
    for number, plan in enumerate(PLAN):
        arrays = make_arrays(plan, np.random.default_rng([seed, number]))
        write_npy(out / plan.name, arrays)
        if plan.name == "train_1":
            write_hdf5(out / "copper.hdf5", plan.name, arrays)
        rms = np.sqrt(np.mean(arrays["force"].astype(np.float64) ** 2))
        spread = arrays["energy"].std()
        frames = len(arrays["energy"])
        print(f"{plan.name}: {frames} frames, force rms {rms:.3f} eV/A, energy std {spread:.3f} eV")


def check(out: Path, step: float = 1e-4) -> bool:
    """Compare forces and virial of a triclinic frame with finite differences; count neighbours."""
    first = out / "train_1" / "set.000"
    coord, cell, force, virial = (
        np.load(first / f"{name}.npy")[-1].reshape(-1, 3).astype(np.float64)
        for name in ("coord", "box", "force", "virial")
    )
    worst = 0.0
    for atom, axis in ((0, 0), (7, 2), (20, 1)):
        numeric = -slope(lambda h, a=atom, x=axis: displaced_energy(coord, cell, a, x, h), step)
        worst = max(worst, abs(numeric - force[atom, axis]))
        print(f"force[{atom}, {axis}]: stored {force[atom, axis]:9.5f}, numeric {numeric:9.5f} eV/A")
    for i, j in ((0, 0), (2, 2), (0, 1), (1, 2)):
        numeric = -slope(lambda h, i=i, j=j: strained_energy(coord, cell, i, j, h), step)
        worst = max(worst, abs(numeric - virial[i, j]))
        print(f"virial[{i}, {j}]: stored {virial[i, j]:9.5f}, -dE/dstrain {numeric:9.5f} eV")
    print(f"most neighbours within {RCUT} A: {max(most_neighbours(out / plan.name) for plan in PLAN)}")
    passed = worst < 1e-3
    print("check passed" if passed else "check FAILED")
    return passed


def slope(function: Callable[[float], float], step: float) -> float:
    """Central difference at zero."""
    return (function(step) - function(-step)) / (2 * step)


def displaced_energy(coord: np.ndarray, cell: np.ndarray, atom: int, axis: int, step: float) -> float:
    """Energy with one coordinate moved."""
    moved = coord.copy()
    moved[atom, axis] += step
    return make_atoms(moved, cell).get_potential_energy()


def strained_energy(coord: np.ndarray, cell: np.ndarray, i: int, j: int, step: float) -> float:
    """Energy with positions and cell under a symmetric strain."""
    strain = np.eye(3)
    strain[i, j] += step / 2
    strain[j, i] += step / 2
    return make_atoms(coord @ strain, cell @ strain).get_potential_energy()


def most_neighbours(folder: Path) -> int:
    """The largest number of neighbours that an atom of the system has within the cutoff."""
    coords, boxes = (np.load(folder / "set.000" / f"{name}.npy") for name in ("coord", "box"))
    most = 0
    for coord, box in zip(coords, boxes, strict=True):
        atoms = make_atoms(coord.reshape(-1, 3), box.reshape(3, 3))
        most = max(most, np.bincount(neighbor_list("i", atoms, RCUT)).max())
    return int(most)


def parse_args() -> argparse.Namespace:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Make the bulk-copper example data (see the docstring).")
    parser.add_argument("--out", type=Path, default=here / "data", help="folder of the systems")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--check", action="store_true", help="only check the written data")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.check:
        return 0 if check(args.out) else 1
    write(args.out, args.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
