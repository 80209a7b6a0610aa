"""Gradients of a full loss with respect to every weight: one ordinary backward pass against a double one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.model import Potential
from lockstep.model.potential import Parameters
from potentials import (
    ACTIVATIONS,
    KINDS,
    VARIANTS,
    Frame,
    close,
    random_frame,
    random_potential,
    stack,
    variant_potential,
)
from reference_model import ReferenceModel


class Targets:
    """Random labels of energy, forces, virial and atomic energies, and the loss against them."""

    def __init__(self, n_frames: int, n_atoms: int, seed: int = 0) -> None:
        rng = np.random.default_rng([seed, 3])
        shapes = ((n_frames,), (n_frames, n_atoms, 3), (n_frames, 3, 3), (n_frames, n_atoms))
        self.labels = [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]

    def loss(self, energy: Tensor, force: Tensor, virial: Tensor, atom_energy: Tensor) -> Tensor:
        answers = (energy, force, virial, atom_energy)
        prefactors = (0.02, 10.0, 0.5, 1.0)
        return torch.stack(
            [p * ((a - b) ** 2).mean() for p, a, b in zip(prefactors, answers, self.labels, strict=True)]
        ).sum()


def package_loss(potential: Potential, frames: list[Frame], targets: Targets) -> Tensor:
    coord, cell, types, fparam, aparam = stack(frames)
    environment = potential.environment_builder().build(potential.find_pairs(coord, cell, types), types)
    parameters = Parameters(
        None if fparam is None else torch.from_numpy(fparam),
        None if aparam is None else torch.from_numpy(aparam),
    )
    found = potential(environment, parameters)
    return targets.loss(found.energy, found.force, found.virial, found.atom_energy)


def reference_loss(reference: ReferenceModel, frames: list[Frame], targets: Targets) -> Tensor:
    answers = []
    for frame in frames:
        arrays = (frame.coord, frame.cell, frame.types, frame.fparam, frame.aparam)
        answers.append(reference(*(None if x is None else torch.from_numpy(x) for x in arrays)))
    columns = ("energy", "force", "virial", "atom_energy")
    return targets.loss(*(torch.stack([getattr(answer, name) for answer in answers]) for name in columns))


def check_against_reference(potential: Potential, frames: list[Frame]) -> None:
    targets = Targets(len(frames), frames[0].n)
    loss = package_loss(potential, frames, targets)
    loss.backward()
    reference = ReferenceModel(potential)
    expected_loss = reference_loss(reference, frames, targets)
    expected_loss.backward()
    close(loss.detach(), expected_loss.detach(), 1e-12)
    for name, weight in potential.named_parameters():
        expected = reference.weights[name].grad
        assert weight.grad is not None, name
        # A bias of the last layer under a vacuum energy cancels: the reference has no gradient there.
        expected = torch.zeros_like(weight) if expected is None else expected
        close(weight.grad, expected, 1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", ["triclinic", "none"])
@pytest.mark.parametrize("name", [*VARIANTS, *KINDS])
def test_gradients_equal_those_of_the_textbook_model(name: str, kind: str) -> None:
    potential = variant_potential(name)
    check_against_reference(potential, [random_frame(kind, n=5, seed=s, potential=potential) for s in range(2)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_for_every_activation(activation: str) -> None:
    change = {"activation_function": activation}
    check_against_reference(random_potential(change, change), [random_frame("cubic", n=4)])


def test_gradients_when_neighbours_are_dropped() -> None:
    potential = random_potential({"sel": [2, 3]})
    check_against_reference(potential, [random_frame("cubic")])


@pytest.mark.parametrize("name", ["one_side", "two_side", "env_protection", "parameters"])
def test_gradients_along_random_directions_are_finite_differences(name: str) -> None:
    potential = variant_potential(name)
    frames = [random_frame("triclinic", seed=s, potential=potential) for s in range(2)]
    targets = Targets(2, frames[0].n)
    package_loss(potential, frames, targets).backward()
    weights = list(potential.parameters())
    rng = torch.Generator().manual_seed(5)
    for _ in range(3):
        direction = [torch.randn(w.shape, dtype=w.dtype, generator=rng) for w in weights]
        expected = sum((w.grad * d).sum().item() for w, d in zip(weights, direction, strict=True))
        step, total = 1e-4, 0.0
        for k, weight in ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12)):
            move(weights, direction, k * step)
            total += weight * package_loss(potential, frames, targets).item() / step
            move(weights, direction, -k * step)
        assert total == pytest.approx(expected, rel=1e-7)


@torch.no_grad()
def move(weights: list[torch.nn.Parameter], direction: list[Tensor], step: float) -> None:
    for weight, d in zip(weights, direction, strict=True):
        weight.add_(d, alpha=step)


def test_frozen_parts_get_no_gradient() -> None:
    potential = random_potential({"trainable": False}, {"trainable": [False, True, True]})
    frames = [random_frame()]
    package_loss(potential, frames, Targets(1, frames[0].n)).backward()
    trained = {name for name, weight in potential.named_parameters() if weight.grad is not None}
    assert trained
    assert all("fitting" in name and "layers.0" not in name for name in trained)
