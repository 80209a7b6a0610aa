"""Forces, virials and the symmetries of nature, for every option that changes the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.model import Potential
from potentials import (
    ACTIVATIONS,
    CELLS,
    KINDS,
    VARIANTS,
    Frame,
    close,
    evaluate,
    random_frame,
    random_potential,
    rotation,
    variant_potential,
)

STEP = 1e-3
STENCIL = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))


def slopes(potential: Potential, moved: list[tuple[Frame, ...]], step: float) -> np.ndarray:
    """Central differences of fourth order of the energy; `moved` has the frames at the stencil's points."""
    energy = evaluate(potential, *(frame for frames in moved for frame in frames)).energy.numpy()
    weights = np.array([weight for _, weight in STENCIL])
    return energy.reshape(-1, len(STENCIL)) @ weights / step


def displaced(frame: Frame, atom: int, axis: int, step: float) -> tuple[Frame, ...]:
    offset = np.zeros_like(frame.coord)
    offset[atom, axis] = step
    return tuple(replace(frame, coord=frame.coord + k * offset) for k, _ in STENCIL)


def strained(frame: Frame, a: int, b: int, step: float) -> tuple[Frame, ...]:
    unit = np.zeros((3, 3))
    unit[a, b] = step
    frames = []
    for k, _ in STENCIL:
        deform = np.eye(3) + k * unit
        cell = None if frame.cell is None else frame.cell @ deform
        frames.append(replace(frame, coord=frame.coord @ deform, cell=cell))
    return tuple(frames)


def check_derivatives(potential: Potential, frame: Frame, step: float = STEP, tolerance: float = 1e-7) -> None:
    found = evaluate(potential, frame)
    force = -slopes(potential, [displaced(frame, i, x, step) for i in range(frame.n) for x in range(3)], step)
    virial = -slopes(potential, [strained(frame, a, b, step) for a in range(3) for b in range(3)], step)
    close(found.force[0].numpy(), force.reshape(-1, 3), rtol=0, atol=tolerance)
    close(found.virial[0].numpy(), virial.reshape(3, 3).T, rtol=0, atol=tolerance)
    assert found.force.abs().max() > 1e-3, "a potential without forces would show nothing"


@pytest.mark.parametrize("name", [*VARIANTS, *KINDS])
def test_forces_and_virial_are_derivatives_of_the_energy(name: str) -> None:
    potential = variant_potential(name)
    # A small step: the switch has a kink in its third derivative.
    check_derivatives(potential, random_frame("triclinic", potential=potential), step=1e-4)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("one_side", [True, False])
def test_derivatives_in_cells_of_any_shape(kind: str, one_side: bool) -> None:
    potential = random_potential({"type_one_side": one_side})
    check_derivatives(potential, random_frame(kind, n=7, seed=3), step=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_for_every_activation(activation: str) -> None:
    change = {"activation_function": activation}
    potential = random_potential(change, change)
    # Tiny steps for the sake of relu, whose slope jumps.
    check_derivatives(potential, random_frame("triclinic", n=4, seed=5), step=1e-5)


seeds = st.integers(0, 2**31)
few = settings(max_examples=15, deadline=None, derandomize=True)


@few
@given(seed=seeds, kind=st.sampled_from(list(CELLS)), one_side=st.booleans())
def test_translation_changes_nothing(seed: int, kind: str, one_side: bool) -> None:
    potential = random_potential({"type_one_side": one_side})
    frame = random_frame(kind, seed=seed)
    moved = replace(frame, coord=frame.coord + np.random.default_rng(seed).normal(size=3) * 10)
    before, after = evaluate(potential, frame), evaluate(potential, moved)
    close(after.atom_energy, before.atom_energy, 1e-11)
    close(after.force, before.force, 1e-11)
    close(after.virial, before.virial, 1e-11)


@few
@given(seed=seeds, kind=st.sampled_from(list(CELLS)), one_side=st.booleans())
def test_rotation_turns_forces_and_virial_along(seed: int, kind: str, one_side: bool) -> None:
    potential = random_potential({"type_one_side": one_side})
    frame = random_frame(kind, seed=seed)
    q = rotation(np.random.default_rng(seed))
    turned = replace(frame, coord=frame.coord @ q.T, cell=None if frame.cell is None else frame.cell @ q.T)
    before, after = evaluate(potential, frame), evaluate(potential, turned)
    close(after.atom_energy, before.atom_energy, 1e-11)
    close(after.force[0], before.force[0].numpy() @ q.T, 1e-11)
    close(after.virial[0], q @ before.virial[0].numpy() @ q.T, 1e-11)


@few
@given(seed=seeds, name=st.sampled_from(["one_side", "two_side", "exclude", "parameters"]))
def test_order_of_atoms_does_not_matter(seed: int, name: str) -> None:
    potential = variant_potential(name)
    frame = random_frame("triclinic", seed=seed, potential=potential)
    order = np.random.default_rng(seed).permutation(frame.n)
    aparam = None if frame.aparam is None else frame.aparam[order]
    shuffled = replace(frame, coord=frame.coord[order], types=frame.types[order], aparam=aparam)
    before, after = evaluate(potential, frame), evaluate(potential, shuffled)
    close(after.energy, before.energy, 1e-12)
    close(after.atom_energy[0], before.atom_energy[0][order], 1e-12)
    close(after.force[0], before.force[0][order], 1e-11)
    close(after.virial, before.virial, 1e-11)


@few
@given(seed=seeds, kind=st.sampled_from(list(CELLS)))
def test_forces_sum_to_zero_and_virial_is_symmetric(seed: int, kind: str) -> None:
    found = evaluate(random_potential(), random_frame(kind, seed=seed))
    close(found.force.sum(dim=1), np.zeros((1, 3)), 0, atol=1e-12)
    close(found.virial[0], found.virial[0].T, 1e-11)


@pytest.mark.parametrize("one_side", [True, False])
@pytest.mark.parametrize("sel", [[10, 16], [1, 1]])
def test_energy_and_forces_are_continuous_at_the_cutoff(one_side: bool, sel: list[int]) -> None:
    """A neighbour that arrives takes an empty slot; with a non-zero mean both have to count alike."""
    potential = random_potential({"type_one_side": one_side, "sel": sel})
    rcut = potential.rcut
    pair = [
        Frame(np.array([[0.0, 0, 0], [rcut + offset, 0, 0]]), None, np.array([0, 1])) for offset in (-1e-4, -1e-7, 1e-7)
    ]
    found = evaluate(potential, *pair)
    energy, force = found.energy.numpy(), found.force.numpy()
    assert abs(energy[1] - energy[2]) < 1e-13
    assert np.abs(force[1] - force[2]).max() < 1e-9
    assert np.all(force[2] == 0)
    # It is continuous because the potential fades, not because nothing happens there.
    assert 0 < np.abs(force[0]).max() < 1e-4


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "large"])
@pytest.mark.parametrize("repeats", [(2, 1, 1), (2, 3, 1)])
def test_supercell_has_n_times_the_energy(kind: str, repeats: tuple[int, int, int]) -> None:
    potential = random_potential()
    frame = random_frame(kind)
    assert frame.cell is not None
    shifts = np.array([[i, j, k] for i in range(repeats[0]) for j in range(repeats[1]) for k in range(repeats[2])])
    n = len(shifts)
    coord = (frame.coord[None] + (shifts @ frame.cell)[:, None]).reshape(-1, 3)
    large = Frame(coord, frame.cell * np.array(repeats)[:, None], np.tile(frame.types, n))
    small, whole = evaluate(potential, frame), evaluate(potential, large)
    close(whole.energy, n * small.energy, 1e-12)
    close(whole.force[0], np.tile(small.force[0], (n, 1)), 1e-11)
    close(whole.virial, n * small.virial, 1e-11)


def test_cell_much_smaller_than_the_cutoff() -> None:
    """One atom that sees its own images many times over: forces vanish, the virial does not."""
    potential = random_potential({"sel": [60, 1]})
    frame = Frame(np.zeros((1, 3)), np.diag([2.0, 2.3, 2.1]), np.array([0]))
    found = evaluate(potential, frame)
    close(found.force, np.zeros((1, 1, 3)), 0, atol=1e-12)
    virial = -slopes(potential, [strained(frame, a, a, 1e-4) for a in range(3)], 1e-4)
    close(np.diag(found.virial[0]), virial, 0, atol=1e-7)


def test_large_vacuum_around_a_molecule_equals_no_cell() -> None:
    potential = random_potential()
    frame = random_frame("none")
    boxed = replace(frame, cell=np.diag([40.0, 45.0, 50.0]))
    free, periodic = evaluate(potential, frame), evaluate(potential, boxed)
    close(periodic.energy, free.energy, 1e-13)
    close(periodic.force, free.force, 1e-11)
    close(periodic.virial, free.virial, 1e-11)
