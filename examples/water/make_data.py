#!/usr/bin/env python3
"""Make the liquid-water data set of this example.

The work is done in three stages, each of which keeps its results on disk, so that an interrupted run
continues where it stopped:

sample
    Molecular dynamics of 64 flexible water molecules in a periodic box with OpenMM.  One independent
    trajectory (own initial lattice orientation, own velocities) is run per system and temperature.
label
    Energy, forces and virial of every snapshot by periodic GFN1-xTB (Gamma point) with tblite.
write
    The labelled frames as DeePMD-kit ``deepmd/npy`` systems.

The force field is SPC/Fw (Wu, Tepper and Voth, J. Chem. Phys. 124, 024503, 2006) with the equilibrium
bond length and angle moved so that the molecules of the snapshots vibrate about the geometry that GFN1-xTB
prefers.  With the original values every O-H bond would be stretched in every frame.

Requirements: ``pip install openmm tblite ase numpy``.  All stages with the default settings take 35 to
60 minutes on one core::

    python make_data.py                 # sample, label and write to ./data
    python make_data.py --check         # finite-difference checks of one labelled frame
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import openmm
    from ase import Atoms

N_MOLECULES = 64
SPACING_PS = {300.0: 1.0, 350.0: 1.0, 400.0: 0.5, 500.0: 0.5}  # time between snapshots by temperature (K)
TYPE_MAP = ("O", "H")

# SPC/Fw, in kcal/mol, Angstrom, radian and elementary charges; E = k/2 (x - x0)^2 for bonds and angles.
BOND_K = 1059.162
BOND_R0 = 0.957  # SPC/Fw: 1.012
ANGLE_K = 75.90
ANGLE_THETA0 = np.deg2rad(110.0)  # SPC/Fw: 113.24 degrees
CHARGE_O = -0.82
SIGMA_O = 3.165492
EPSILON_O = 0.1554253
MASS = {"O": 15.9994, "H": 1.00794}
KCAL = 4.184  # kJ/mol
NM = 0.1  # one Angstrom in nm

TIMESTEP_PS = 0.0005
CUTOFF_NM = 0.6
EQUILIBRATION_PS = 4.0


@dataclass(frozen=True)
class SystemPlan:
    """One ``deepmd/npy`` system: its box edge (Angstrom), frames per temperature and frames in each set."""

    name: str
    edge: float
    frames_per_temperature: int
    sets: tuple[int, ...]


PLAN = (
    SystemPlan("train_0", 12.42, 20, (80,)),
    SystemPlan("train_1", 12.34, 20, (40, 40)),
    SystemPlan("train_2", 12.54, 20, (80,)),
    SystemPlan("validation", 12.44, 15, (60,)),
)


@dataclass(frozen=True)
class Segment:
    """One trajectory: a system at one temperature."""

    plan: SystemPlan
    temperature: float
    seed: int

    @property
    def stem(self) -> str:
        """The start of the names of its files."""
        return f"{self.plan.name}-{self.temperature:.0f}K"


def segments(seed: int) -> Iterator[Segment]:
    """All trajectories, lowest temperatures first, each with a seed of its own."""
    for i, temperature in enumerate(SPACING_PS):
        for j, plan in enumerate(PLAN):
            yield Segment(plan, temperature, seed + 100 * i + j + 1)


# ----------------------------------------------------------------------------------------------------------
# sample
# ----------------------------------------------------------------------------------------------------------


def lattice_start(edge: float, rng: np.random.Generator) -> np.ndarray:
    """Coordinates (Angstrom, O H H order) of randomly turned molecules on a simple cubic lattice."""
    n = round(N_MOLECULES ** (1 / 3))
    centres = (np.stack(np.meshgrid(*[np.arange(n)] * 3, indexing="ij"), -1).reshape(-1, 3) + 0.5) * edge / n
    half = ANGLE_THETA0 / 2
    molecule = BOND_R0 * np.array([[0, 0, 0], [np.sin(half), np.cos(half), 0], [-np.sin(half), np.cos(half), 0]])
    frames = [centre + molecule @ random_rotation(rng).T for centre in centres]
    return np.concatenate(frames)


def random_rotation(rng: np.random.Generator) -> np.ndarray:
    """A rotation matrix drawn uniformly."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.linalg.det(q)


def build_system(edge: float) -> openmm.System:
    """The flexible-water OpenMM system: harmonic bonds and angles, Lennard-Jones on O, and PME."""
    import openmm

    system = openmm.System()
    length = edge * NM
    system.setDefaultPeriodicBoxVectors((length, 0, 0), (0, length, 0), (0, 0, length))
    bonds, angles = openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    nonbonded = openmm.NonbondedForce()
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.PME)
    nonbonded.setCutoffDistance(CUTOFF_NM)
    bond_k = BOND_K * KCAL / NM**2
    for _ in range(N_MOLECULES):
        o, h1, h2 = (system.addParticle(MASS[symbol]) for symbol in "OHH")
        nonbonded.addParticle(CHARGE_O, SIGMA_O * NM, EPSILON_O * KCAL)
        for h in (h1, h2):
            nonbonded.addParticle(-CHARGE_O / 2, 0.1, 0.0)
            bonds.addBond(o, h, BOND_R0 * NM, bond_k)
        angles.addAngle(h1, o, h2, ANGLE_THETA0, ANGLE_K * KCAL)
        for pair in ((o, h1), (o, h2), (h1, h2)):
            nonbonded.addException(*pair, 0.0, 0.1, 0.0)
    for force in (bonds, angles, nonbonded):
        system.addForce(force)
    return system


def run_segment(segment: Segment) -> np.ndarray:
    """Snapshots (frames, atoms, 3) in Angstrom of one trajectory, in time order."""
    import openmm
    from openmm import unit

    integrator = openmm.LangevinMiddleIntegrator(segment.temperature, 2.0, TIMESTEP_PS)
    integrator.setRandomNumberSeed(segment.seed)
    platform = openmm.Platform.getPlatformByName("CPU")
    properties = {"Threads": "1", "DeterministicForces": "true"}
    context = openmm.Context(build_system(segment.plan.edge), integrator, platform, properties)
    context.setPositions(lattice_start(segment.plan.edge, np.random.default_rng(segment.seed)) * NM)
    openmm.LocalEnergyMinimizer.minimize(context, 10.0, 200)
    context.setVelocitiesToTemperature(segment.temperature, segment.seed)
    integrator.step(round(EQUILIBRATION_PS / TIMESTEP_PS))
    snapshots = []
    for _ in range(segment.plan.frames_per_temperature):
        integrator.step(round(SPACING_PS[segment.temperature] / TIMESTEP_PS))
        state = context.getState(getPositions=True, enforcePeriodicBox=False)
        snapshots.append(state.getPositions(asNumpy=True).value_in_unit(unit.angstrom))
    return wrap_molecules(np.array(snapshots), segment.plan.edge)


def wrap_molecules(coords: np.ndarray, edge: float) -> np.ndarray:
    """Move whole molecules so that every oxygen lies in the box."""
    molecules = coords.reshape(len(coords), N_MOLECULES, 3, 3)
    shift = np.floor(molecules[:, :, :1] / edge) * edge
    return (molecules - shift).reshape(coords.shape)


def sample(work: Path, seed: int) -> None:
    """Run every trajectory whose snapshots are not yet in ``work``."""
    for segment in segments(seed):
        path = work / f"{segment.stem}.snapshots.npy"
        if path.exists():
            continue
        coords = run_segment(segment).astype(np.float32)
        save(path, coords)
        print(f"sampled {segment.stem}: {len(coords)} snapshots", flush=True)


def save(path: Path, array: np.ndarray) -> None:
    """Write an array so that an interrupted run leaves no half-written file."""
    partial = path.with_name("partial-" + path.name)
    np.save(partial, array)
    partial.replace(path)


# ----------------------------------------------------------------------------------------------------------
# label
# ----------------------------------------------------------------------------------------------------------


def make_atoms(coord: np.ndarray, cell: np.ndarray) -> Atoms:
    """The frame as ASE atoms with a GFN1-xTB calculator."""
    from ase import Atoms
    from tblite.ase import TBLite

    atoms = Atoms("OHH" * N_MOLECULES, positions=coord, cell=cell, pbc=True)
    atoms.calc = TBLite(method="GFN1-xTB", verbosity=0)
    return atoms


def label_frame(coord: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Energy (eV), virial (9, eV) and forces (eV/Angstrom) of a frame in one flat array."""
    atoms = make_atoms(coord, cell)
    energy = atoms.get_potential_energy()
    virial = -atoms.get_stress(voigt=False) * atoms.get_volume()
    return np.concatenate([[energy], virial.ravel(), atoms.get_forces().ravel()])


def label(work: Path, seed: int) -> None:
    """Label every snapshot that has no label in ``work`` yet."""
    for segment in segments(seed):
        cell = np.eye(3) * np.float32(segment.plan.edge)
        coords = np.load(work / f"{segment.stem}.snapshots.npy").astype(np.float64)
        for index, coord in enumerate(coords):
            path = work / f"{segment.stem}.label-{index:03d}.npy"
            if not path.exists():
                save(path, label_frame(coord, cell))
        print(f"labelled {segment.stem}", flush=True)


# ----------------------------------------------------------------------------------------------------------
# write
# ----------------------------------------------------------------------------------------------------------


def collect(work: Path, plan: SystemPlan, seed: int) -> dict[str, np.ndarray]:
    """The arrays of one system: frames of all temperatures in turn, so that each set has them all."""
    coords, labels = [], []
    mine = [segment for segment in segments(seed) if segment.plan == plan]
    snapshots = {segment.stem: np.load(work / f"{segment.stem}.snapshots.npy") for segment in mine}
    for index in range(plan.frames_per_temperature):
        for segment in mine:
            coords.append(snapshots[segment.stem][index].ravel())
            labels.append(np.load(work / f"{segment.stem}.label-{index:03d}.npy"))
    flat = np.array(labels)
    box = np.tile((np.eye(3) * plan.edge).ravel(), (len(flat), 1))
    # Energies stay in double precision: near -1e4 eV single precision resolves only about 1e-3 eV.
    return {
        "coord": np.array(coords, dtype=np.float32),
        "box": box.astype(np.float32),
        "energy": flat[:, 0],
        "virial": flat[:, 1:10].astype(np.float32),
        "force": flat[:, 10:].astype(np.float32),
    }


def write_system(folder: Path, arrays: dict[str, np.ndarray], sets: tuple[int, ...]) -> None:
    """Write one ``deepmd/npy`` system, its frames split into the given sets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "type.raw").write_text("0\n1\n1\n" * N_MOLECULES)
    (folder / "type_map.raw").write_text("\n".join(TYPE_MAP) + "\n")
    start = 0
    for number, count in enumerate(sets):
        target = folder / f"set.{number:03d}"
        target.mkdir(exist_ok=True)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array[start : start + count])
        start += count


def write(work: Path, out: Path, seed: int) -> None:
    """Write all systems and print a summary."""
    for plan in PLAN:
        arrays = collect(work, plan, seed)
        write_system(out / plan.name, arrays, plan.sets)
        rms = np.sqrt(np.mean(arrays["force"].astype(np.float64) ** 2))
        spread = arrays["energy"].std()
        frames = len(arrays["energy"])
        print(f"{plan.name}: {frames} frames, force rms {rms:.3f} eV/A, energy std {spread:.3f} eV")


# ----------------------------------------------------------------------------------------------------------
# check
# ----------------------------------------------------------------------------------------------------------


def check(out: Path, step: float = 2e-3) -> bool:
    """Compare forces and virial of the first validation frame with finite differences of the energy."""
    first = out / "validation" / "set.000"
    coord, cell, force, virial = (
        np.load(first / f"{name}.npy")[0].reshape(-1, 3).astype(np.float64)
        for name in ("coord", "box", "force", "virial")
    )
    worst_force = 0.0
    for atom, axis in ((0, 0), (1, 2), (100, 1)):
        numeric = -slope(lambda h, a=atom, x=axis: displaced_energy(coord, cell, a, x, h), step)
        worst_force = max(worst_force, abs(numeric - force[atom, axis]))
        print(f"force[{atom}, {axis}]: stored {force[atom, axis]:9.4f}, numeric {numeric:9.4f} eV/A")
    worst_virial = 0.0
    for i, j in ((0, 0), (2, 2), (0, 1)):
        numeric = -slope(lambda h, i=i, j=j: strained_energy(coord, cell, i, j, h), step / 4)
        worst_virial = max(worst_virial, abs(numeric - virial[i, j]))
        print(f"virial[{i}, {j}]: stored {virial[i, j]:9.4f}, -dE/dstrain {numeric:9.4f} eV")
    passed = worst_force < 5e-3 and worst_virial < 5e-2
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


def parse_args() -> argparse.Namespace:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Make the liquid-water example data (see the docstring).")
    parser.add_argument("--out", type=Path, default=here / "data", help="folder of the systems")
    parser.add_argument("--work", type=Path, default=here / "work", help="folder of intermediate results")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument(
        "--stages", nargs="+", choices=("sample", "label", "write"), default=("sample", "label", "write")
    )
    parser.add_argument("--check", action="store_true", help="only check the written data")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    if args.check:
        return 0 if check(args.out) else 1
    args.work.mkdir(parents=True, exist_ok=True)
    if "sample" in args.stages:
        sample(args.work, args.seed)
    if "label" in args.stages:
        label(args.work, args.seed)
    if "write" in args.stages:
        write(args.work, args.out, args.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
