"""Molecular dynamics of a trained model with ASE, started from the last frame of a system of the data.

    python run_md.py model.dp                                  water, 300 K, 200 steps of 0.5 fs
    python run_md.py ../copper --system ../copper/data/validation --ensemble nve --temperature 600

The model is a `.dp` file, or a checkpoint: its file, its prefix (`model.ckpt`) or the folder of the training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.io.trajectory import Trajectory
from ase.md import MDLogger
from ase.md.langevin import Langevin
from ase.md.md import MolecularDynamics
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary
from ase.md.verlet import VelocityVerlet

from lockstep import DP

WATER = Path(__file__).resolve().parents[1] / "water" / "data" / "validation"


def main() -> None:
    arguments = parse_arguments()
    atoms = last_frame(arguments.system)
    atoms.calc = DP(arguments.model)
    rng = np.random.default_rng(arguments.seed)
    MaxwellBoltzmannDistribution(atoms, temperature_K=arguments.temperature, rng=rng)
    Stationary(atoms)
    dynamics = make_dynamics(atoms, arguments, rng)
    dynamics.attach(MDLogger(dynamics, atoms, "-", peratom=True), interval=arguments.every)
    if arguments.output:
        dynamics.attach(Trajectory(arguments.output, "w", atoms), interval=arguments.every)
    dynamics.run(arguments.steps)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .dp model or a checkpoint")
    parser.add_argument("--system", type=Path, default=WATER, help="folder in the deepmd/npy format")
    parser.add_argument("--ensemble", choices=["nvt", "nve"], default="nvt")
    parser.add_argument("--temperature", type=float, default=300.0, help="in K")
    parser.add_argument("--timestep", type=float, default=0.5, help="in fs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between lines and between saved frames")
    parser.add_argument("--output", help="trajectory file, for `ase gui`")
    parser.add_argument("--seed", type=int, default=1, help="of the velocities and the thermostat")
    return parser.parse_args()


def last_frame(system: Path) -> Atoms:
    """The last frame of a system, periodic unless it is marked `nopbc`."""
    last = sorted(system.glob("set.*"))[-1]
    names = (system / "type_map.raw").read_text().split()
    symbols = [names[int(number)] for number in (system / "type.raw").read_text().split()]
    positions = np.load(last / "coord.npy")[-1].reshape(-1, 3)
    if (system / "nopbc").exists():
        return Atoms(symbols, positions)
    return Atoms(symbols, positions, cell=np.load(last / "box.npy")[-1].reshape(3, 3), pbc=True)


def make_dynamics(atoms: Atoms, arguments: argparse.Namespace, rng: np.random.Generator) -> MolecularDynamics:
    timestep = arguments.timestep * units.fs
    if arguments.ensemble == "nve":
        return VelocityVerlet(atoms, timestep)
    return Langevin(atoms, timestep, temperature_K=arguments.temperature, friction=0.01 / units.fs, rng=rng)


if __name__ == "__main__":
    main()
