"""The ASE calculator, and molecular dynamics with it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError
from ase.md.verlet import VelocityVerlet

import lockstep
from lockstep.errors import CheckpointError, UserError
from lockstep.interop.deepmd import save_dp
from lockstep.model import Potential
from potentials import Frame, close, evaluate, random_frame, random_potential, variant_potential

REPOSITORY = Path(__file__).parents[2]


def atoms_of(frame: Frame) -> Atoms:
    return Atoms(np.array(["O", "H"])[frame.types], frame.coord, cell=frame.cell, pbc=frame.cell is not None)


def with_calculator(atoms: Atoms, potential: Potential, **options: object) -> Atoms:
    atoms.calc = lockstep.DP(potential, **options)
    return atoms


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "none"])
def test_the_calculator_gives_what_the_potential_says(kind: str, tmp_path: Path) -> None:
    potential, frame = random_potential(), random_frame(kind)
    save_dp(potential, tmp_path / "model.dp")
    atoms = atoms_of(frame)
    atoms.calc = lockstep.DP(tmp_path / "model.dp")
    expected = evaluate(potential, frame)
    assert atoms.get_potential_energy() == pytest.approx(expected.energy.item(), rel=1e-14)
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
    close(atoms.get_potential_energies(), expected.atom_energy[0], 1e-14)
    close(atoms.get_forces(), expected.force[0], 1e-14)
    close(atoms.calc.results["virial"], expected.virial[0], 1e-14)


def test_stress_is_the_slope_of_the_energy_with_strain() -> None:
    atoms = with_calculator(atoms_of(random_frame("triclinic")), random_potential())
    step = 1e-5
    slopes = []
    for a, b in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[a, b] += 0.5 * sign * step
            strain[b, a] += 0.5 * sign * step
            moved = atoms.copy()
            moved.calc = atoms.calc
            moved.set_cell(atoms.cell @ strain, scale_atoms=True)
            energies.append(moved.get_potential_energy())
        slopes.append((energies[0] - energies[1]) / (2 * step) / atoms.get_volume())
    close(atoms.get_stress(), slopes, 0, atol=1e-8)
    assert np.abs(slopes).max() > 1e-4


def test_no_stress_without_a_cell() -> None:
    atoms = with_calculator(atoms_of(random_frame("none")), random_potential())
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    assert np.isfinite(atoms.get_potential_energy())


@pytest.mark.parametrize("pbc", [(True, True, False), (False, True, False), (True, False, True)])
def test_some_periodic_directions_equal_images_cut_off_by_vacuum(pbc: tuple[bool, ...]) -> None:
    frame, potential = random_frame("triclinic"), random_potential()
    partly, padded = atoms_of(frame), atoms_of(frame)
    partly.pbc = pbc
    for axis in range(3):
        if not pbc[axis]:
            padded.cell[axis] *= 12
    assert with_calculator(partly, potential).get_potential_energy() == pytest.approx(
        with_calculator(padded, potential).get_potential_energy(), rel=1e-12
    )
    close(partly.get_forces(), padded.get_forces(), 1e-10)


def test_a_slab_may_leave_its_open_direction_without_a_vector() -> None:
    atoms = atoms_of(random_frame("cubic"))
    atoms.pbc = (True, True, False)
    whole = with_calculator(atoms.copy(), random_potential())
    atoms.cell[2] = 0
    open_ended = with_calculator(atoms, random_potential())
    assert open_ended.get_potential_energy() == pytest.approx(whole.get_potential_energy(), rel=1e-12)


def test_a_periodic_direction_without_a_vector_is_refused() -> None:
    atoms = with_calculator(Atoms("OH", [[0, 0, 0], [1, 0, 0]], pbc=True), random_potential())
    with pytest.raises(UserError, match="lattice vector"):
        atoms.get_potential_energy()


def test_an_unknown_element_is_refused_with_the_type_map() -> None:
    atoms = with_calculator(Atoms("OHNe", [[0, 0, 0], [1, 0, 0], [0, 1, 0]]), random_potential())
    with pytest.raises(UserError, match=r"Ne unknown .*O, H"):
        atoms.get_potential_energy()


def test_type_dict_maps_other_symbols() -> None:
    frame, potential = random_frame("none"), random_potential()
    heavy = Atoms(np.array(["S", "H"])[frame.types], frame.coord)
    energy = with_calculator(heavy, potential, type_dict={"S": 0, "H": 1}).get_potential_energy()
    assert energy == with_calculator(atoms_of(frame), potential).get_potential_energy()


def test_parameters_come_from_the_atoms() -> None:
    potential = variant_potential("parameters")
    frame = random_frame("cubic", potential=potential)
    atoms = with_calculator(atoms_of(frame), potential)
    atoms.info = {"fparam": frame.fparam, "aparam": frame.aparam}
    assert atoms.get_potential_energy() == pytest.approx(evaluate(potential, frame).energy.item(), rel=1e-14)


def test_missing_parameters_are_named() -> None:
    potential = variant_potential("parameters")
    atoms = with_calculator(atoms_of(random_frame("cubic")), potential)
    with pytest.raises(UserError, match="fparam"):
        atoms.get_potential_energy()


def test_neighbours_left_out_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    atoms = with_calculator(atoms_of(random_frame("cubic")), random_potential({"sel": [1, 1]}))
    with caplog.at_level(logging.WARNING):
        atoms.get_potential_energy()
        atoms.positions += 0.01
        atoms.get_potential_energy()
    assert len([record for record in caplog.records if "sel" in record.message]) == 1


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        lockstep.DP(tmp_path / "nothing.dp")


def test_options_of_other_calculators_are_refused() -> None:
    with pytest.raises(UserError, match="head"):
        lockstep.DP(random_potential(), head="water")


def total_energies(timestep: float, duration: float = 200.0) -> np.ndarray:
    """Total energies in eV along a run without thermostat of copper at 300 K; times in fs."""
    potential = random_potential({"sel": [80], "rcut": 4.5}, type_map=("Cu",), seed=3)
    atoms = with_calculator(bulk("Cu", cubic=True).repeat(2), potential)
    thermal = np.sqrt(units.kB * 300 * atoms.get_masses())[:, None]
    atoms.set_momenta(thermal * np.random.default_rng(1).normal(size=(len(atoms), 3)))
    dynamics = VelocityVerlet(atoms, timestep * units.fs)
    energies = []
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.run(round(duration / timestep))
    return np.array(energies)


def test_energy_is_conserved_to_second_order_in_the_time_step() -> None:
    """Forces that were not the slope of the energy, or jumped, would show as a drift that no time step heals."""
    coarse, fine = (np.ptp(total_energies(timestep)) for timestep in (4.0, 2.0))
    assert fine / 32 < 1e-5
    assert 3.5 < coarse / fine < 4.5


@pytest.mark.parametrize("ensemble", ["nvt", "nve"])
def test_the_example_runs(ensemble: str, tmp_path: Path) -> None:
    frame = random_frame("large", n=9)
    folder = tmp_path / "system" / "set.000"
    folder.mkdir(parents=True)
    np.save(folder / "coord.npy", frame.coord.reshape(1, -1).repeat(2, axis=0))
    np.save(folder / "box.npy", np.reshape(frame.cell, (1, 9)).repeat(2, axis=0))
    (tmp_path / "system" / "type.raw").write_text("\n".join(map(str, frame.types)))
    (tmp_path / "system" / "type_map.raw").write_text("O\nH\n")
    save_dp(random_potential(), tmp_path / "model.dp")
    script = REPOSITORY / "examples" / "md" / "run_md.py"
    options = ["--system", tmp_path / "system", "--ensemble", ensemble, "--steps", "4", "--every", "2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "model.dp", *options, "--output", tmp_path / "run.traj"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Etot" in done.stdout
    assert len(done.stdout.splitlines()) == 4
    assert (tmp_path / "run.traj").stat().st_size > 0
