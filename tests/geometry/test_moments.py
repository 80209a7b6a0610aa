"""Expanded nets against exact ones, compiled loops against plain operations, and maps against their adjoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep.config.elements import ELEMENTS
from lockstep.geometry import Environment, Moments, Rows, SplineBasis
from lockstep.geometry import layout as layout_module
from lockstep.geometry import moments as moments_module
from lockstep.geometry.layout import Layout
from lockstep.model import Potential
from lockstep.model.potential import Parameters
from lockstep.network import contraction as contraction_module
from potentials import (
    ACTIVATIONS,
    ATTEN,
    KINDS,
    VARIANTS,
    Frame,
    close,
    random_frame,
    random_potential,
    stack,
    variant_potential,
)

FINE = SplineBasis(intervals=96, s_max=1.0)
KINKED = ("relu", "relu6")


def environment(potential: Potential, frames: list[Frame], basis: SplineBasis | None) -> Environment:
    coord, cell, types, *_ = stack(frames)
    bases = [basis] * len(potential.cutoffs)
    return potential.environment_builder().build(potential.find_pairs(coord, cell, types), types, bases)


def answers(potential: Potential, frames: list[Frame], env: Environment) -> dict[str, torch.Tensor]:
    """Energies, forces, virials, and the gradient of a loss on all of them by the weights."""
    *_, fparam, aparam = stack(frames)
    parameters = Parameters(*(None if x is None else torch.from_numpy(x) for x in (fparam, aparam)))
    potential.zero_grad()
    found = potential(env, parameters)
    loss = (found.energy**2).sum() + (found.force**2).sum() + (found.virial**2).sum() + (found.atom_energy**3).sum()
    loss.backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in potential.parameters() if p.grad is not None])
    return {"energy": found.energy, "force": found.force, "virial": found.virial, "gradient": gradient}


def compare(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rtol: float) -> None:
    for name, value in expected.items():
        close(actual[name].detach(), value.detach(), rtol, atol=1e-12)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "none"])
@pytest.mark.parametrize("name", [*VARIANTS, *KINDS])
def test_expanded_nets_agree_with_exact_ones(name: str, kind: str) -> None:
    potential = variant_potential(name)
    frames = [random_frame(kind, n=5, seed=s, potential=potential) for s in range(2)]
    expanded, exact = environment(potential, frames, FINE), environment(potential, frames, None)
    assert all(isinstance(features, Moments) for features in expanded.features)
    assert all(isinstance(features, Rows) for features in exact.features)
    compare(answers(potential, frames, expanded), answers(potential, frames, exact), 1e-6)


@pytest.mark.parametrize("activation", [a for a in ACTIVATIONS if a not in KINKED])
def test_expanded_nets_agree_for_every_smooth_activation(activation: str) -> None:
    potential = random_potential({"activation_function": activation})
    frames = [random_frame("cubic", n=4)]
    expanded, exact = (environment(potential, frames, basis) for basis in (FINE, None))
    # `silut` has a kink in its second derivative at the threshold.
    compare(
        answers(potential, frames, expanded), answers(potential, frames, exact), 1e-3 if "silut" in activation else 1e-6
    )


def in_precision(name: str, precision: str) -> Potential:
    variant, change = {**VARIANTS, **KINDS}[name], {"precision": precision}
    members = [{**member, **change} for member in variant.descriptor.get("list", ())]
    descriptor = {**variant.descriptor, **({"list": members} if members else change)}
    return random_potential(descriptor, {**variant.fitting, **change})


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "name", ["one_side", "two_side", "exclude_two_side", "radial_exclude", "concat_mean", "smooth_mean", "hybrid_both"]
)
def test_compiled_loops_agree_with_plain_operations(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    potential = in_precision(name, precision)
    frames = [random_frame("triclinic", n=6, seed=s, potential=potential) for s in range(3)]
    compiled = answers(potential, frames, environment(potential, frames, FINE))
    monkeypatch.setattr(moments_module, "_kernels", lambda: None)
    env = environment(potential, frames, FINE)
    plain = (moments_module.PlainMomentTranspose, moments_module.PlainCountTranspose)
    assert all(isinstance(transpose, plain) for transpose in env.transposes)
    compare(compiled, answers(potential, frames, env), 1e-12 if precision == "float64" else 2e-5)


@pytest.mark.parametrize("n_frames", [1, 3])
@pytest.mark.parametrize("name", ["one_side", "two_side", "radial", "smooth_mean", "hybrid_both"])
def test_threads_that_share_the_loops_agree_with_one(name: str, n_frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    potential = variant_potential(name)
    frames = [random_frame("triclinic", n=7, seed=s, potential=potential) for s in range(n_frames)]
    alone = answers(potential, frames, environment(potential, frames, FINE))
    for module in (layout_module, contraction_module):
        monkeypatch.setattr(module, "_WORTH_IT", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        env = environment(potential, frames, FINE)
        coord, cell, types, *_ = stack(frames)
        layout = Layout.of(potential.find_pairs(coord, cell, types)[0], types)
        shares = layout.shares()
        together = answers(potential, frames, env)
    finally:
        torch.set_num_threads(before)
    assert len(shares) == 3
    assert [share.pairs.stop for share in shares[:-1]] == [share.pairs.start for share in shares[1:]]
    assert all(share.pairs.stop > share.pairs.start for share in shares)
    compare(together, alone, 1e-12)


@pytest.mark.parametrize("basis", [FINE, None], ids=["moments", "rows"])
@pytest.mark.parametrize("name", ["one_side", "radial", "smooth_mean"])
def test_the_adjoint_is_the_transpose(name: str, basis: SplineBasis | None) -> None:
    potential = variant_potential(name)
    frames = [random_frame("triclinic", n=5, seed=s) for s in range(2)]
    env = environment(potential, frames, basis)
    generator = torch.Generator().manual_seed(0)
    force_bar = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    virial_bar = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator)
    for transpose in env.transposes:
        adjoint = transpose.adjoint(force_bar, virial_bar, torch.float64)
        gradient = torch.randn(adjoint.shape, dtype=torch.float64, generator=generator)
        force, virial = transpose.forces(gradient)
        there = (force * force_bar).sum() + (virial * virial_bar).sum()
        assert float(there) == pytest.approx(float((adjoint * gradient).sum()), rel=1e-12)


def test_types_that_do_not_occur_have_no_columns() -> None:
    """A model of all elements must not carry all of them through a micro-batch of water."""
    potential = random_potential({**ATTEN}, type_map=ELEMENTS)
    frame = random_frame("cubic")
    types = np.array([7, 0])[frame.types]
    env = environment(potential, [Frame(frame.coord, frame.cell, types)], FINE)
    (moments,) = env.features
    assert isinstance(moments, Moments)
    assert moments.columns == (0, 7)
    assert moments.values.shape == (6, 4, 2 * FINE.size)


def test_forces_are_the_derivative_of_the_expanded_energy_itself() -> None:
    coarse = SplineBasis(intervals=12, s_max=1.0)
    potential = random_potential()
    frame = random_frame("triclinic", n=5)
    potential.requires_grad_(False)
    force = potential(environment(potential, [frame], coarse)).force[0]
    step = 1e-5
    for atom, axis in ((0, 0), (2, 1), (4, 2)):
        energies = []
        for sign in (1, -1):
            moved = frame.coord.copy()
            moved[atom, axis] += sign * step
            energies.append(potential(environment(potential, [Frame(moved, frame.cell, frame.types)], coarse)).energy)
        assert float(-(energies[0] - energies[1]) / (2 * step)) == pytest.approx(float(force[atom, axis]), abs=1e-7)


def test_a_pair_beyond_the_basis_has_its_batch_evaluated_exactly() -> None:
    potential = random_potential()
    frame = random_frame("cubic", n=4)
    assert isinstance(environment(potential, [frame], SplineBasis(32, s_max=0.2)).features[0], Rows)


def test_a_neighbour_may_enter_an_empty_slot_without_a_jump() -> None:
    potential = random_potential().requires_grad_(False)
    rcut = potential.rcut
    energies = []
    for distance in (rcut - 1e-7, rcut + 1e-7):
        coord = np.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.0, distance, 0.0]])
        frame = Frame(coord, None, np.array([0, 1, 1]))
        energies.append(float(potential(environment(potential, [frame], FINE)).energy))
    assert energies[0] == pytest.approx(energies[1], abs=1e-12)
