"""How frames, slots, paddings, parameters and precisions enter a prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.geometry import Environment
from lockstep.model import Potential, Prediction
from potentials import VARIANTS, Frame, close, evaluate, random_frame, random_potential, stack, variant_potential


def fields(prediction: Prediction) -> list[torch.Tensor]:
    return [prediction.energy, prediction.atom_energy, prediction.force, prediction.virial]


@pytest.mark.parametrize("kind", ["triclinic", "none"])
@pytest.mark.parametrize("name", ["one_side", "two_side", "exclude", "atom_ener_parameters"])
def test_a_batch_equals_its_frames_one_by_one(name: str, kind: str) -> None:
    potential = variant_potential(name)
    frames = [random_frame(kind, seed=seed, potential=potential) for seed in range(4)]
    together = evaluate(potential, *frames)
    for b, frame in enumerate(frames):
        for whole, alone in zip(fields(together), fields(evaluate(potential, frame)), strict=True):
            close(whole[b], alone[0], 1e-13)


def test_the_same_input_gives_the_same_bits() -> None:
    potential, frame = random_potential(), random_frame()
    first, second = evaluate(potential, frame), evaluate(potential, frame)
    assert all(torch.equal(a, b) for a, b in zip(fields(first), fields(second), strict=True))


def padded(frame: Frame, positions: list[int]) -> Frame:
    """The frame with atoms of type -1 inserted, lying on top of real ones."""
    coord = np.insert(frame.coord, positions, frame.coord[0], axis=0)
    aparam = None if frame.aparam is None else np.insert(frame.aparam, positions, 9.0, axis=0)
    return replace(frame, coord=coord, types=np.insert(frame.types, positions, -1), aparam=aparam)


@pytest.mark.parametrize("name", ["one_side", "two_side", "exclude", "parameters"])
@pytest.mark.parametrize("positions", [[6, 6], [0, 3, 6]])
def test_padding_atoms_change_nothing(name: str, positions: list[int]) -> None:
    potential = variant_potential(name)
    frame = random_frame("triclinic", potential=potential)
    larger = padded(frame, positions)
    plain, mixed = evaluate(potential, frame), evaluate(potential, larger)
    real = larger.types >= 0
    close(mixed.energy, plain.energy, 1e-13)
    close(mixed.virial, plain.virial, 1e-12)
    close(mixed.atom_energy[:, real], plain.atom_energy, 1e-13)
    close(mixed.force[:, real], plain.force, 1e-12)
    assert not mixed.atom_energy[:, ~real].any()
    assert not mixed.force[:, ~real].any()


def test_frames_of_different_composition_share_a_batch() -> None:
    potential = random_potential()
    small, large = random_frame("cubic", n=4), random_frame("cubic", n=6, seed=1)
    small_padded = padded(small, [4, 4])
    together = evaluate(potential, small_padded, large)
    close(together.energy[0], evaluate(potential, small).energy[0], 1e-13)
    close(together.energy[1], evaluate(potential, large).energy[0], 1e-13)


def test_a_type_without_atoms_is_no_obstacle() -> None:
    for one_side in (True, False):
        potential = random_potential({"type_one_side": one_side})
        frame = random_frame()
        only_second = evaluate(potential, replace(frame, types=np.ones_like(frame.types)))
        assert torch.isfinite(only_second.force).all()
        assert only_second.force.abs().max() > 0


def nearest_only(frame: Frame, centre: int, keep: int) -> Frame:
    """The centre and its `keep` nearest atoms, without a cell."""
    distance = np.linalg.norm(frame.coord - frame.coord[centre], axis=1)
    kept = np.argsort(distance)[: keep + 1]
    return Frame(frame.coord[kept], None, frame.types[kept])


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_of_too_many_neighbours_the_nearest_are_kept(keep: int) -> None:
    potential = random_potential({"sel": [keep]}, type_map=("Cu",))
    frame = random_frame("none", n=9, seed=4)
    frame = replace(frame, types=np.zeros(9, dtype=np.int64))
    whole = evaluate(potential, frame)
    for centre in range(frame.n):
        chosen = nearest_only(frame, centre, keep)
        close(whole.atom_energy[0, centre], evaluate(potential, chosen).atom_energy[0, 0], 1e-13)


def test_neighbours_without_a_slot_are_counted() -> None:
    frame = random_frame("none", n=9, seed=4)
    enough = random_potential({"sel": [9, 9]})
    short = random_potential({"sel": [1, 2]})
    ((pairs,),) = enough.find_pairs(frame.coord[None], None, frame.types[None])
    lost = np.maximum(pairs.counts - [1, 2], 0).sum()
    assert pairs.dropped == 0
    assert lost > 0
    assert environment(enough, frame).dropped == 0
    assert environment(short, frame).dropped == lost
    assert environment(short, frame, frame).dropped == 2 * lost


def environment(potential: Potential, *frames: Frame) -> Environment:
    coord, cell, types, *_ = stack(list(frames))
    return potential.environment_builder().build(potential.find_pairs(coord, cell, types), types)


@pytest.mark.parametrize("one_side", [True, False])
@pytest.mark.parametrize("parts", [("descriptor",), ("fitting",), ("descriptor", "fitting")])
def test_float32_agrees_with_float64(one_side: bool, parts: tuple[str, ...]) -> None:
    def potential(precision: str) -> Potential:
        descriptor = {"type_one_side": one_side}
        descriptor |= {"precision": precision} if "descriptor" in parts else {}
        return random_potential(descriptor, {"precision": precision} if "fitting" in parts else {})

    frame = random_frame("triclinic")
    double, single = evaluate(potential("float64"), frame), evaluate(potential("float32"), frame)
    for exact, rounded in zip(fields(double), fields(single), strict=True):
        assert rounded.dtype == torch.float64
        close(rounded, exact, 1e-4)
    assert not torch.equal(double.energy, single.energy)


def test_frame_and_atom_parameters_change_the_energies_they_belong_to() -> None:
    potential = variant_potential("parameters")
    frame = random_frame("triclinic", potential=potential)
    assert frame.fparam is not None
    assert frame.aparam is not None
    before = evaluate(potential, frame).atom_energy[0]
    frame_changed = evaluate(potential, replace(frame, fparam=frame.fparam + np.array([0.0, 0.5]))).atom_energy[0]
    assert (frame_changed != before).all()
    aparam = frame.aparam.copy()
    aparam[2] += 0.5
    atom_changed = evaluate(potential, replace(frame, aparam=aparam)).atom_energy[0]
    assert torch.nonzero(atom_changed != before).flatten().tolist() == [2]


def test_each_frame_has_its_own_parameters() -> None:
    potential = variant_potential("parameters")
    one = random_frame("triclinic", potential=potential)
    assert one.fparam is not None
    two = replace(one, fparam=one.fparam + 1.0)
    together = evaluate(potential, one, two).energy
    alone = [evaluate(potential, frame).energy.item() for frame in (one, two)]
    close(together, alone, 1e-13)
    assert abs(alone[0] - alone[1]) > 1e-3


@pytest.mark.parametrize("name", ["atom_ener", "atom_ener_parameters"])
def test_a_lone_atom_has_exactly_its_given_energy(name: str) -> None:
    """Exactly where the rows' mean is zero: then an atom without neighbours has the descriptor zero."""
    potential = random_potential({"set_davg_zero": True}, VARIANTS[name].fitting)
    energies = potential.config.fitting_net.atom_ener
    for atom_type, expected in enumerate(energies):
        lone = Frame(np.zeros((1, 3)), None, np.array([atom_type]))
        if potential.config.fitting_net.numb_fparam:
            lone = replace(lone, fparam=np.array([0.3]), aparam=np.array([[-0.8]]))
        energy = evaluate(potential, lone).energy.item()
        if expected is None:
            assert energy != potential.network.bias[atom_type].item()
        else:
            assert energy == expected


def test_lone_atoms_far_apart_have_no_forces() -> None:
    potential = random_potential()
    frame = Frame(np.array([[0.0, 0, 0], [50.0, 0, 0]]), None, np.array([0, 1]))
    found = evaluate(potential, frame)
    assert not found.force.any()
    assert not found.virial.any()


def test_excluded_types_do_not_see_each_other() -> None:
    potential = random_potential({"exclude_types": [[0, 1]]})
    frame = Frame(np.array([[0.0, 0, 0], [1.5, 0, 0]]), None, np.array([0, 1]))
    assert not evaluate(potential, frame).force.any()
    assert evaluate(potential, replace(frame, types=np.array([0, 0]))).force.any()


def test_seeds_decide_the_weights() -> None:
    frame = random_frame()
    same = [evaluate(random_potential(seed=7), frame).energy.item() for _ in range(2)]
    assert same[0] == same[1]
    assert evaluate(random_potential(seed=8), frame).energy.item() != same[0]
