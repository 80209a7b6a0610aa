"""Environment rows: the formula, the switch, and their way back to forces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep.errors import UserError
from lockstep.geometry import Cutoff, EnvironmentBuilder, RowScale, find_pairs
from lockstep.geometry.cache import cache_budget
from lockstep.geometry.radial import radial_at, radial_terms, switch
from potentials import random_frame


def scale() -> RowScale:
    columns = ([0.11, 0.07], [0.2, 0.3], [0.5, 0.4])
    return RowScale(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def pair_rows(protection: float = 0.0) -> np.ndarray:
    """The row of the one neighbour of atom 0 (type 0), whose neighbour (type 1) is at (0, 1.2, -0.9)."""
    cutoff = Cutoff(rcut=4.0, rcut_smth=1.0, sel=(2, 3), protection=protection)
    coord, types = np.array([[0.0, 0, 0], [0, 1.2, -0.9]]), np.array([0, 1])
    pairs = find_pairs(coord, None, types, cutoff)
    environment = EnvironmentBuilder([cutoff], [scale()]).build([[pairs]], types[None])
    (features,) = environment.features
    (slot,) = torch.nonzero(features.rows[0, :, 1:].any(dim=1))[0]
    assert features.radial[0, slot] == features.rows[0, slot, 0]
    return features.rows[0, slot].numpy()


def by_hand(protection: float) -> np.ndarray:
    d, r = np.array([0, 1.2, -0.9]), 1.5
    x = (r - 1.0) / 3.0
    w = x**3 * (-6 * x**2 + 15 * x - 10) + 1
    s = w / (r + protection)
    return np.array([(s - 0.11) / 0.2, *(w * d / (r + protection) ** 2 / 0.5)])


@pytest.mark.parametrize("protection", [0.0, 0.25])
def test_a_row_is_what_the_formula_says(protection: float) -> None:
    assert pair_rows(protection) == pytest.approx(by_hand(protection), rel=1e-14)


def test_an_empty_slot_looks_like_a_neighbour_at_the_cutoff() -> None:
    r = torch.tensor([4.0 - 1e-9], dtype=torch.float64)
    terms = radial_terms(r, Cutoff(4.0, 1.0, (2, 3)))
    at_cutoff = (terms.radial - scale().mean) / scale().std_radial
    assert at_cutoff.numpy() == pytest.approx(scale().empty.numpy(), abs=1e-12)


def test_total_weight_of_the_slots_is_sel() -> None:
    """The rows of a centre without neighbours add up to sel times the empty row."""
    cutoff = Cutoff(4.0, 1.0, (2, 3))
    types = np.array([[1]])
    environment = EnvironmentBuilder([cutoff], [scale()]).build(
        [[find_pairs(np.zeros((1, 3)), None, types[0], cutoff)]], types
    )
    total = environment.features[0].rows.sum(dim=1)[0]
    assert total.numpy() == pytest.approx([5 * scale().empty[1].item(), 0, 0, 0], rel=1e-14)


def test_switch_is_twice_differentiable_at_both_ends() -> None:
    for edge, value in ((1.0, 1.0), (4.0, 0.0)):
        r = torch.tensor([edge - 1e-6, edge + 1e-6], dtype=torch.float64)
        w, slope = switch(r, 1.0, 4.0)
        assert w.numpy() == pytest.approx(value, abs=1e-14)
        assert slope.numpy() == pytest.approx(0.0, abs=1e-11)


def test_switch_falls_steadily_between_its_ends() -> None:
    r = torch.linspace(0.5, 4.5, 401, dtype=torch.float64)
    w, slope = switch(r, 1.0, 4.0)
    assert (w[r <= 1.0] == 1).all()
    assert (w[r >= 4.0] == 0).all()
    assert (w.diff() <= 0).all()
    assert (slope <= 0).all()


@pytest.mark.parametrize("protection", [0.0, 0.3])
def test_slopes_of_the_radial_functions(protection: float) -> None:
    cutoff = Cutoff(4.0, 1.0, (1,), protection=protection)
    r = torch.linspace(0.7, 4.2, 50, dtype=torch.float64).requires_grad_()
    terms = radial_terms(r, cutoff)
    for value, slope in ((terms.radial, terms.radial_slope), (terms.angular, terms.angular_slope)):
        (expected,) = torch.autograd.grad(value.sum(), r, retain_graph=True)
        assert slope.detach().numpy() == pytest.approx(expected.numpy(), rel=1e-11, abs=1e-13)
    assert (terms.angular_over_r * r).detach().numpy() == pytest.approx(terms.angular.detach().numpy(), rel=1e-14)


@pytest.mark.parametrize("protection", [0.0, 0.3])
def test_the_radial_function_at_one_distance(protection: float) -> None:
    cutoff = Cutoff(4.0, 1.0, (1,), protection=protection)
    r = torch.linspace(0.7, 4.2, 50, dtype=torch.float64)
    found = [radial_at(float(distance), cutoff) for distance in r]
    assert found == pytest.approx(radial_terms(r, cutoff).radial.tolist(), rel=1e-14, abs=1e-16)
    assert found == sorted(found, reverse=True)
    assert radial_at(float("inf"), cutoff) == 0.0


def test_no_gradient_is_recorded_in_geometry() -> None:
    frame, cutoff = random_frame(), Cutoff(4.0, 1.0, (20, 30))
    pairs = find_pairs(frame.coord, frame.cell, frame.types, cutoff)
    environment = EnvironmentBuilder([cutoff], [scale()]).build([[pairs]], frame.types[None])
    assert not environment.features[0].rows.requires_grad


def test_padding_atoms_are_no_centres() -> None:
    frame, cutoff = random_frame(), Cutoff(4.0, 1.0, (20, 30))
    types = frame.types.copy()
    types[[1, 4]] = -1
    pairs = find_pairs(frame.coord, frame.cell, types, cutoff)
    environment = EnvironmentBuilder([cutoff], [scale()]).build([[pairs]], types[None])
    assert sorted(environment.atom.tolist()) == [0, 2, 3, 5]


@pytest.mark.parametrize(
    ("setting", "environ", "expected"),
    [(100.0, {}, 100_000_000), ("auto", {"DP_CACHE_MEMORY": "2.5"}, 2_500_000), (7.0, {"DP_CACHE_MEMORY": "0"}, 0)],
)
def test_the_environment_has_the_last_word_on_the_cache(setting: str | float, environ: dict, expected: int) -> None:
    assert cache_budget(setting, 1, environ) == expected


def test_ranks_of_a_node_share_the_memory_for_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free on the node does not change meanwhile, as it does where others work."""
    pages = {"SC_AVPHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("lockstep.memory.os.sysconf", pages.__getitem__)
    monkeypatch.setattr("lockstep.memory._cgroups", lambda machine: iter(()))
    assert cache_budget("auto", 4, {}) == cache_budget("auto", 1, {}) // 4 > 0


def test_a_cache_budget_that_is_no_number_is_refused() -> None:
    with pytest.raises(UserError, match="DP_CACHE_MEMORY = 'much'"):
        cache_budget("auto", 1, {"DP_CACHE_MEMORY": "much"})
