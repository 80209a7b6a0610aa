"""The control of the spline expansion: measured, refined in time, at a fixed place in the stream."""

from __future__ import annotations

import pytest
import torch

from lockstep.geometry import SplineBasis
from lockstep.model import Potential
from lockstep.model.statistics import UNSEEN_ROW_STD
from lockstep.tasks.energy.spectral import CHECK_EVERY, LADDER, LOOKAHEAD, TOLERANCE, Spectral, expansion_error
from potentials import random_potential


def control(potential: Potential, per_step: int = 2, **state: object) -> Spectral:
    return Spectral(potential, [0.8], lambda step: per_step * step, state.get("state"))  # type: ignore[arg-type]


def only(spectral: Spectral, number: int) -> SplineBasis | None:
    (basis,) = spectral.bases(number)
    return basis


def starts(spectral: Spectral) -> list[int]:
    (part,) = spectral.state_dict()["parts"]
    return list(part["starts"])


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
    basis = only(control(potential), 0)
    assert basis is not None
    assert expansion_error(potential, basis) <= TOLERANCE / 8
    coarser = [n for n in LADDER if n < basis.intervals]
    assert all(expansion_error(potential, SplineBasis(n, 0.8)) > TOLERANCE / 8 for n in coarser)


def test_a_looser_tolerance_gives_a_coarser_basis() -> None:
    tight, loose = (only(control(random_potential({"spectral": tolerance})), 0) for tolerance in (1e-7, 1e-3))
    assert tight is not None
    assert loose is not None
    assert loose.intervals < tight.intervals


@pytest.mark.parametrize("per_step", [1, 4])
def test_a_finer_basis_takes_effect_at_a_fixed_place_of_the_stream(per_step: int) -> None:
    potential = random_potential()
    spectral = control(potential, per_step=per_step)
    before = only(spectral, 0)
    spectral.check(CHECK_EVERY)
    sharpen(potential, 1.6)
    spectral.check(CHECK_EVERY + 1)
    assert starts(spectral) == [0], "looked at between two checks"
    spectral.check(2 * CHECK_EVERY)
    change = per_step * (2 * CHECK_EVERY + LOOKAHEAD)
    after = only(spectral, change)
    assert before is not None
    assert after is not None
    assert after.intervals > before.intervals
    assert only(spectral, change - 1) == before
    assert spectral.current == (before,)


@pytest.mark.parametrize("factor", [4.0, 6.0])
def test_sharp_nets_are_still_expanded(factor: float) -> None:
    """SOAP at a high rate makes nets so sharp; the exact ones would take three times as long."""
    potential = random_potential()
    spectral = control(potential)
    sharpen(potential, factor)
    spectral.check(CHECK_EVERY)
    basis = only(spectral, 10**9)
    assert basis is not None
    assert basis.intervals > 192
    assert expansion_error(potential, basis) <= TOLERANCE / 8


def test_nets_too_sharp_for_any_basis_are_evaluated_exactly() -> None:
    potential = random_potential()
    spectral = control(potential)
    sharpen(potential, 300.0)
    spectral.check(CHECK_EVERY)
    assert only(spectral, 10**9) is None
    spectral.check(2 * CHECK_EVERY)
    assert len(starts(spectral)) == 2


def test_activations_with_kinks_are_evaluated_exactly() -> None:
    assert only(control(random_potential({"activation_function": "relu"})), 0) is None


def test_off_and_fixed_stay_as_they_are() -> None:
    potentials = [random_potential({"spectral": setting}) for setting in ("off", 40)]
    off, fixed = (control(potential) for potential in potentials)
    for potential, spectral in zip(potentials, (off, fixed), strict=True):
        sharpen(potential, 30.0)
        spectral.check(CHECK_EVERY)
    assert only(off, 10**9) is None
    basis = only(fixed, 10**9)
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
        assert only(again, number) == only(spectral, number)


def test_a_change_never_comes_before_an_earlier_one() -> None:
    potential = random_potential()
    many = control(potential, per_step=8)
    sharpen(potential, 1.6)
    many.check(CHECK_EVERY)
    change = 8 * (CHECK_EVERY + LOOKAHEAD)
    few = Spectral(potential, [0.8], lambda step: 8 * CHECK_EVERY + (step - CHECK_EVERY), many.state_dict())
    sharpen(potential, 1.6)
    few.check(2 * CHECK_EVERY)
    assert starts(few) == [0, change, change]
    before, after = only(few, change - 1), only(few, change)
    assert before == only(many, 0)
    assert after is not None
    assert after.intervals == few.state_dict()["parts"][0]["intervals"][-1]


def test_the_state_of_the_first_version_is_understood() -> None:
    potential = random_potential()
    state = {"version": 1, "s_max": 0.7, "starts": [0, 300], "intervals": [24, 48]}
    spectral = control(potential, state=state)
    assert [only(spectral, number) for number in (299, 300)] == [SplineBasis(24, 0.7), SplineBasis(48, 0.7)]


def test_types_that_the_data_do_not_have_are_not_looked_at() -> None:
    potential = random_potential()
    (scale,) = potential.scales
    for column in (scale.std_radial, scale.std_angular):
        column[1] = UNSEEN_ROW_STD
    before = expansion_error(potential, SplineBasis(32, 0.8))
    with torch.no_grad():
        potential.network.descriptor.net(0, 1).layers[0].weight.mul_(30.0)
    assert expansion_error(potential, SplineBasis(32, 0.8)) == before
