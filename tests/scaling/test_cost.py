"""The cost model: known costs are found again, and few points do not lead it astray."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.scaling.cost import CostModel, Point, fit, held_out_error, non_negative_least_squares, slowest_of

TRUE = CostModel(compute=0.030, latency=0.0004, transfer=0.002, imbalance=0.001)


def points(model: CostModel, counts: tuple[int, ...], parts: bool = True) -> list[Point]:
    found = []
    for workers in counts:
        total = model.seconds(workers, 1)
        wait = model.imbalance * slowest_of(workers)
        communication = total - model.compute - wait
        shares = (communication / total, wait / total) if parts else (None, None)
        found.append(Point(workers, 1, total, *shares))
    return found


def test_known_costs_are_found_again() -> None:
    found = fit(points(TRUE, (1, 2, 4, 8, 16)))
    assert found.seconds(512, 1) == pytest.approx(TRUE.seconds(512, 1), rel=0.05)
    assert found.compute == pytest.approx(TRUE.compute, rel=0.01)
    assert found.imbalance == pytest.approx(TRUE.imbalance, rel=0.1)


def test_two_points_are_met_without_parts() -> None:
    measured = points(TRUE, (1, 2), parts=False)
    assert [fit(measured).error(point) for point in measured] == pytest.approx([0, 0], abs=1e-3)


def test_perfect_scaling_is_predicted_to_go_on() -> None:
    measured = [Point(workers, 1, 0.02, 0.0, 0.0) for workers in (1, 2, 4)]
    assert fit(measured).seconds(512, 1) == pytest.approx(0.02)


def test_faster_steps_on_more_workers_give_no_negative_costs() -> None:
    found = fit([Point(1, 1, 0.03), Point(2, 1, 0.02)])
    assert min(found.latency, found.transfer, found.imbalance) == 0.0
    assert found.seconds(512, 1) == pytest.approx(found.compute)


def test_strong_scaling_divides_the_computation() -> None:
    measured = [Point(workers, 8 // workers, TRUE.seconds(workers, 8 // workers)) for workers in (1, 2, 4, 8)]
    assert fit(measured).compute == pytest.approx(TRUE.compute, rel=0.02)


def test_the_held_out_error_is_that_of_the_most_workers() -> None:
    measured = points(TRUE, (1, 2, 4))
    slower = Point(4, 1, 2 * measured[-1].seconds)
    assert held_out_error(measured[:2]) is None
    assert held_out_error(measured) == pytest.approx(0, abs=0.02)
    assert held_out_error([slower, *measured[:2]]) == pytest.approx(-0.5, abs=0.01)


@pytest.mark.parametrize(("workers", "expected"), [(1, 0.0), (2, np.pi**-0.5), (3, 1.5 * np.pi**-0.5)])
def test_the_slowest_of_some(workers: int, expected: float) -> None:
    assert slowest_of(workers) == pytest.approx(expected, abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31))
def test_no_step_in_a_feasible_direction_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(9, 4)), rng.normal(size=9)
    x = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    # The conditions of Karush, Kuhn and Tucker.
    assert (gradient > -1e-9).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-9
