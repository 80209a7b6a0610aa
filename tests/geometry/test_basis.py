"""The splines in which embedding nets are expanded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from lockstep.geometry import SplineBasis
from lockstep.geometry.basis import DEGREE

BASIS = SplineBasis(intervals=24, s_max=1.1)
EVERYWHERE = np.linspace(0.0, BASIS.intervals, 401)


def test_they_are_the_b_splines_of_the_literature() -> None:
    for number in range(BASIS.size):
        knots = np.arange(number - DEGREE, number + 2, dtype=float)
        expected = np.nan_to_num(BSpline.basis_element(knots, extrapolate=False)(EVERYWHERE))
        assert BASIS.values(EVERYWHERE)[:, number] == pytest.approx(expected, abs=1e-12)


@given(st.floats(0.0, 24.0))
def test_they_add_up_to_one_and_their_slopes_to_nothing(position: float) -> None:
    at = np.array([position])
    assert BASIS.values(at).sum() == pytest.approx(1.0, abs=1e-12)
    assert BASIS.values(at, slope=True).sum() == pytest.approx(0.0, abs=1e-11)


@given(st.floats(0.0, 1.1))
def test_position_and_radial_are_inverse(s: float) -> None:
    assert BASIS.radial(BASIS.position(np.array([s])))[0] == pytest.approx(s, abs=1e-14)


def test_ends_of_the_interval_are_s_max_and_zero() -> None:
    assert BASIS.position(np.array([0.0, BASIS.s_max])) == pytest.approx([0.0, BASIS.intervals])


@pytest.mark.parametrize("degree", range(DEGREE + 1))
def test_polynomials_up_to_their_degree_are_expanded_exactly(degree: int) -> None:
    coefficients = BASIS.fit @ (BASIS.nodes / BASIS.intervals) ** degree
    found = BASIS.values(EVERYWHERE) @ coefficients
    assert found == pytest.approx((EVERYWHERE / BASIS.intervals) ** degree, abs=1e-10)


def test_the_error_falls_with_the_eighth_power_of_the_interval() -> None:
    def error(intervals: int) -> float:
        basis = SplineBasis(intervals, 1.1)
        at = np.linspace(0.0, intervals, 1001)
        return np.abs(basis.values(at) @ basis.fit @ _bump(basis.nodes / intervals) - _bump(at / intervals)).max()

    assert error(24) / error(48) > 2**7


def _bump(x: np.ndarray) -> np.ndarray:
    return np.tanh((x - 0.4) / 0.15)
