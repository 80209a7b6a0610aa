"""The control of the spline expansion: measured, refined in time, at a fixed place in the stream."""

from __future__ import annotations

import pytest
import torch

from lockstep.geometry import SplineBasis
from lockstep.model import Potential
from lockstep.tasks.energy.spectral import CHECK_EVERY, LADDER, LOOKAHEAD, TOLERANCE, Spectral, expansion_error
from potentials import random_potential


def control(potential: Potential, setting: str | float = "auto", per_step: int = 2, **state: object) -> Spectral:
    return Spectral(potential, setting, 0.8, lambda step: per_step * step, state.get("state"))  # type: ignore[arg-type]


def sharpen(potential: Potential, factor: float) -> None:
    """Let the nets change faster with the distance, as training does."""
    with torch.no_grad():
        for net in potential.network.descriptor.nets:
            net.layers[0].weight.mul_(factor)


def test_the_error_falls_with_finer_bases_and_rises_with_sharper_nets() -> None:
    potential = random_potential()
    errors = [expansion_error(potential, SplineBasis(n, 0.8)) for n in (16, 32, 64)]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]
    sharpen(potential, 1.6)
    assert expansion_error(potential, SplineBasis(32, 0.8)) > 3 * errors[1]


def test_the_coarsest_basis_that_is_good_enough_is_chosen() -> None:
    potential = random_potential()
    basis = control(potential).basis(0)
    assert basis is not None
    assert expansion_error(potential, basis) <= TOLERANCE / 8
    coarser = [n for n in LADDER if n < basis.intervals]
    assert all(expansion_error(potential, SplineBasis(n, 0.8)) > TOLERANCE / 8 for n in coarser)


def test_a_looser_tolerance_gives_a_coarser_basis() -> None:
    potential = random_potential()
    tight, loose = (control(potential, tolerance).basis(0) for tolerance in (1e-7, 1e-3))
    assert tight is not None
    assert loose is not None
    assert loose.intervals < tight.intervals


@pytest.mark.parametrize("per_step", [1, 4])
def test_a_finer_basis_takes_effect_at_a_fixed_place_of_the_stream(per_step: int) -> None:
    potential = random_potential()
    spectral = control(potential, per_step=per_step)
    before = spectral.basis(0)
    spectral.check(CHECK_EVERY)
    sharpen(potential, 1.6)
    spectral.check(CHECK_EVERY + 1)
    assert spectral.state_dict()["starts"] == [0], "looked at between two checks"
    spectral.check(2 * CHECK_EVERY)
    change = per_step * (2 * CHECK_EVERY + LOOKAHEAD)
    after = spectral.basis(change)
    assert before is not None
    assert after is not None
    assert after.intervals > before.intervals
    assert spectral.basis(change - 1) == before
    assert spectral.current == before


def test_nets_too_sharp_for_any_basis_are_evaluated_exactly() -> None:
    potential = random_potential()
    spectral = control(potential)
    sharpen(potential, 300.0)
    spectral.check(CHECK_EVERY)
    assert spectral.basis(10**9) is None
    spectral.check(2 * CHECK_EVERY)
    assert len(spectral.state_dict()["starts"]) == 2


def test_activations_with_kinks_are_evaluated_exactly() -> None:
    assert control(random_potential({"activation_function": "relu"})).basis(0) is None


def test_off_and_fixed_stay_as_they_are() -> None:
    potential = random_potential()
    off, fixed = control(potential, "off"), control(potential, 40.0)
    sharpen(potential, 30.0)
    for spectral in (off, fixed):
        spectral.check(CHECK_EVERY)
    assert off.basis(10**9) is None
    basis = fixed.basis(10**9)
    assert basis is not None
    assert basis.intervals == 40


def test_state_goes_on_where_it_was() -> None:
    potential = random_potential()
    spectral = control(potential)
    sharpen(potential, 1.6)
    spectral.check(CHECK_EVERY)
    again = control(potential, state=spectral.state_dict())
    assert again.state_dict() == spectral.state_dict()
    for number in (0, 100, 1000):
        assert again.basis(number) == spectral.basis(number)


def test_a_change_never_comes_before_an_earlier_one() -> None:
    potential = random_potential()
    many = control(potential, per_step=8)
    sharpen(potential, 1.6)
    many.check(CHECK_EVERY)
    change = 8 * (CHECK_EVERY + LOOKAHEAD)
    few = Spectral(potential, "auto", 0.8, lambda step: 8 * CHECK_EVERY + (step - CHECK_EVERY), many.state_dict())
    sharpen(potential, 1.6)
    few.check(2 * CHECK_EVERY)
    assert few.state_dict()["starts"] == [0, change, change]
    before, after = few.basis(change - 1), few.basis(change)
    assert before == many.basis(0)
    assert after is not None
    assert after.intervals == few.state_dict()["intervals"][-1]
