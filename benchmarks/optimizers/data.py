"""Makes the small data sets on which optimizers are compared: four kinds of matter that have little in common.

    python benchmarks/optimizers/data.py            into runs/optimizers/data: a few minutes, once

molecule    ethanol without a cell, GFN1-xTB (needs tblite; the others need ASE alone)
alloy       a disordered fcc alloy of copper, gold and nickel, effective-medium theory
surface     oxygen on platinum (111) under vacuum, effective-medium theory
silicon     hot crystal and melt, Tersoff's potential: kept out of all tuning

Frames come from Langevin dynamics at several temperatures; validation frames from trajectories of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.md.langevin import Langevin

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "runs" / "optimizers" / "data"


@dataclass(frozen=True)
class Kind:
    """A data set.

    Attributes:
        start: the first frame of a trajectory; drawn anew for each.
        calculator: what labels frames.
        temperatures: of the trajectories, in K.
        snapshots: frames kept of each trajectory.
        trajectories: for each temperature, of the training and of the validation data.
        timestep: in fs; frames are 20 of them apart.
    """

    start: Callable[[np.random.Generator], Atoms]
    calculator: Callable[[], Any]
    temperatures: tuple[float, ...]
    snapshots: int
    trajectories: tuple[int, int]
    timestep: float


def emt() -> Any:
    from ase.calculators.emt import EMT

    return EMT()


def xtb() -> Any:
    from tblite.ase import TBLite

    return TBLite(method="GFN1-xTB", verbosity=0)


def tersoff() -> Any:
    from ase.calculators.tersoff import Tersoff, TersoffParameters

    # J. Tersoff, Phys. Rev. B 37, 6991 (1988).
    silicon = TersoffParameters(
        m=3.0,
        gamma=1.0,
        lambda3=1.3258,
        c=4.8381,
        d=2.0417,
        h=0.0,
        n=22.956,
        beta=0.33675,
        lambda2=1.3258,
        B=95.373,
        R=3.0,
        D=0.2,
        lambda1=3.2394,
        A=3264.7,
    )
    return Tersoff({("Si", "Si", "Si"): silicon})


def ethanol(rng: np.random.Generator) -> Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.02, seed=int(rng.integers(1 << 31)))
    return atoms


def alloy(rng: np.random.Generator) -> Atoms:
    atoms = bulk("Cu", "fcc", a=3.75 * (1 + 0.02 * rng.uniform(-1, 1)), cubic=True) * (2, 2, 2)
    atoms.symbols[:] = rng.permutation(["Cu"] * 12 + ["Au"] * 10 + ["Ni"] * 10)
    return atoms


def surface(rng: np.random.Generator) -> Atoms:
    atoms = fcc111("Pt", size=(3, 3, 3), vacuum=7.0, periodic=True)
    for site in rng.choice([(0, 0), (1, 0), (2, 1), (0, 2), (1, 2)], size=3, replace=False):
        add_adsorbate(atoms, "O", 1.4, position="fcc", offset=tuple(int(i) for i in site))
    return atoms


def silicon(rng: np.random.Generator) -> Atoms:
    return bulk("Si", "diamond", a=5.43 * (1 + 0.02 * rng.uniform(-1, 1)), cubic=True) * (2, 2, 1)


KINDS = {
    "molecule": Kind(ethanol, xtb, (300.0, 600.0, 1000.0), 25, (4, 1), 1.0),
    "alloy": Kind(alloy, emt, (300.0, 700.0, 1200.0), 10, (4, 1), 4.0),
    "surface": Kind(surface, emt, (300.0, 600.0), 15, (4, 1), 2.0),
    "silicon": Kind(silicon, tersoff, (300.0, 1500.0, 3500.0), 10, (4, 1), 2.0),
}


def make(name: str, out: Path) -> None:
    """Write the systems `train` and `validation` of a data set; each is one composition, whatever its order."""
    kind = KINDS[name]
    for number, (part, count) in enumerate(zip(("train", "validation"), kind.trajectories, strict=True)):
        rng = np.random.default_rng([2026, list(KINDS).index(name), number])
        frames = [
            frame for temperature in kind.temperatures for _ in range(count) for frame in sample(kind, temperature, rng)
        ]
        write(out / name / part, frames)
        print(f"{name}/{part}: {len(frames)} frames of {len(frames[0])} atoms")


def sample(kind: Kind, temperature: float, rng: np.random.Generator) -> list[Atoms]:
    """Labelled frames of one trajectory, their atoms in order of element."""
    atoms = kind.start(rng)
    atoms = atoms[np.argsort(atoms.get_chemical_symbols(), kind="stable")]
    atoms.calc = kind.calculator()
    spread = np.sqrt(2 * units.kB * temperature / atoms.get_masses())[:, None]
    atoms.set_velocities(rng.standard_normal((len(atoms), 3)) * spread)
    dynamics = Langevin(
        atoms, kind.timestep * units.fs, temperature_K=temperature, friction=0.02 / units.fs, fixcm=False, rng=rng
    )
    dynamics.run(100)
    frames = []
    for _ in range(kind.snapshots):
        dynamics.run(20)
        frame = atoms.copy()
        frame.info["energy"], frame.arrays["force"] = atoms.get_potential_energy(), atoms.get_forces()
        frames.append(frame)
    return frames


def write(folder: Path, frames: list[Atoms]) -> None:
    """One `deepmd/npy` system."""
    symbols = frames[0].get_chemical_symbols()
    kinds = sorted(set(symbols))
    (folder / "set.000").mkdir(parents=True, exist_ok=True)
    (folder / "type_map.raw").write_text("\n".join(kinds) + "\n")
    (folder / "type.raw").write_text("\n".join(str(kinds.index(symbol)) for symbol in symbols) + "\n")
    arrays = {
        "coord": np.array([frame.positions.ravel() for frame in frames]),
        "energy": np.array([frame.info["energy"] for frame in frames]),
        "force": np.array([frame.arrays["force"].ravel() for frame in frames]),
    }
    if frames[0].pbc.any():
        arrays["box"] = np.array([frame.cell[:].ravel() for frame in frames])
    else:
        (folder / "nopbc").touch()
    for name, array in arrays.items():
        np.save(folder / "set.000" / f"{name}.npy", array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*KINDS, []], help="default: all that are not there yet")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name in arguments.names or [name for name in KINDS if not (arguments.out / name / "validation").exists()]:
        make(name, arguments.out)


if __name__ == "__main__":
    main()
