"""The neighbour search against brute force over images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.geometry import Cutoff, PairCache, Pairs, find_pairs
from potentials import random_frame

WIDE = Cutoff(rcut=3.5, rcut_smth=0.5, sel=(500, 500, 500))


def brute_force(coord: NDArray, cell: NDArray | None, types: NDArray, rcut: float) -> list[tuple]:
    """(centre, neighbour, rounded vector) of every pair, from all images that can reach."""
    shifts = np.zeros((1, 3))
    if cell is not None:
        heights = abs(np.linalg.det(cell)) / np.linalg.norm(np.cross(cell[[1, 2, 0]], cell[[2, 0, 1]]), axis=1)
        spread = np.ptp(coord @ np.linalg.inv(cell), axis=0)
        reach = np.ceil(rcut / heights + spread).astype(int)
        grid = np.meshgrid(*(np.arange(-m, m + 1) for m in reach), indexing="ij")
        shifts = np.stack(grid, axis=-1).reshape(-1, 3) @ cell
    vector = coord[None, :, None] + shifts - coord[:, None, None]
    distance = np.linalg.norm(vector, axis=-1)
    real = (types[:, None] >= 0) & (types[None, :] >= 0)
    found = np.argwhere((distance < rcut) & (distance > 1e-8) & real[..., None])
    return sorted((int(i), int(j), *np.round(vector[i, j, k], 6) + 0.0) for i, j, k in found)


def listed(pairs: Pairs, types: NDArray) -> list[tuple]:
    centre = np.repeat(np.arange(len(types)), pairs.counts.sum(axis=1))
    return sorted(
        (int(i), int(j), *np.round(d, 6) + 0.0) for i, j, d in zip(centre, pairs.neighbour, pairs.vector, strict=True)
    )


@st.composite
def frames(draw: st.DrawFn) -> tuple[NDArray, NDArray | None, NDArray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    n = draw(st.integers(1, 7))
    types = rng.integers(-1 if draw(st.booleans()) else 0, 3, n)
    if draw(st.booleans()):
        return rng.uniform(-3, 3, (n, 3)), None, types
    shape = draw(st.sampled_from(["flat", "skew", "left-handed", "plain"]))
    cell = np.diag(rng.uniform(2.0, 6.0, 3)) + rng.uniform(-0.5, 0.5, (3, 3))
    if shape == "flat":
        cell[2] *= 0.4
    elif shape == "skew":
        cell[1] += 1.5 * cell[0]
    elif shape == "left-handed":
        cell = cell[[1, 0, 2]]
    return rng.uniform(-1.5, 2.5, (n, 3)) @ cell, cell, types


@settings(max_examples=60, deadline=None, derandomize=True)
@given(frames())
def test_all_pairs_are_found(frame: tuple[NDArray, NDArray | None, NDArray]) -> None:
    coord, cell, types = frame
    pairs = find_pairs(coord, cell, types, WIDE)
    assert listed(pairs, types) == brute_force(coord, cell, types, WIDE.rcut)
    assert pairs.dropped == 0


@settings(max_examples=30, deadline=None, derandomize=True)
@given(frames(), st.tuples(*[st.integers(1, 4)] * 3))
def test_the_nearest_of_each_type_are_kept(frame: tuple, sel: tuple[int, int, int]) -> None:
    coord, cell, types = frame
    everything = find_pairs(coord, cell, types, WIDE)
    few = find_pairs(coord, cell, types, Cutoff(WIDE.rcut, WIDE.rcut_smth, sel))
    assert np.array_equal(few.counts, np.minimum(everything.counts, sel))
    assert few.dropped == everything.counts.sum() - few.counts.sum()
    ends, all_ends = np.cumsum(few.counts), np.cumsum(everything.counts)
    for group, (kept, found) in enumerate(zip(few.counts.ravel(), everything.counts.ravel(), strict=True)):
        distance = np.linalg.norm(few.vector[ends[group] - kept : ends[group]], axis=1)
        candidates = np.linalg.norm(everything.vector[all_ends[group] - found : all_ends[group]], axis=1)
        assert np.allclose(np.sort(distance), np.sort(candidates)[:kept], atol=1e-12)


def test_pairs_are_ordered_by_centre_and_neighbour_type() -> None:
    frame = random_frame("triclinic", n=8)
    pairs = find_pairs(frame.coord, frame.cell, frame.types, Cutoff(4.0, 0.5, (50, 50)))
    expected = np.repeat(np.tile([0, 1], frame.n), pairs.counts.ravel())
    assert np.array_equal(frame.types[pairs.neighbour], expected)


def test_excluded_types_occupy_slots_without_being_paired() -> None:
    frame = random_frame("triclinic", n=8)
    plain = find_pairs(frame.coord, frame.cell, frame.types, Cutoff(4.0, 0.5, (50, 50)))
    excluded = find_pairs(frame.coord, frame.cell, frame.types, Cutoff(4.0, 0.5, (50, 50), exclude=frozenset({(0, 1)})))
    assert np.array_equal(excluded.occupied, plain.counts)
    is_first = frame.types == 0
    assert np.array_equal(excluded.counts[is_first, 0], plain.counts[is_first, 0])
    assert not excluded.counts[is_first, 1].any()
    assert not excluded.counts[~is_first, 0].any()
    assert len(excluded.neighbour) == excluded.counts.sum()


def test_the_closest_pair() -> None:
    frame = random_frame("triclinic", n=8)
    pairs = find_pairs(frame.coord, frame.cell, frame.types, Cutoff(4.0, 0.5, (50, 50)))
    assert pairs.closest == pytest.approx(np.linalg.norm(pairs.vector, axis=1).min(), rel=1e-15)


def test_a_frame_of_padding_has_no_pairs() -> None:
    pairs = find_pairs(np.zeros((3, 3)), None, np.full(3, -1), WIDE)
    assert pairs.closest == np.inf
    assert len(pairs.neighbour) == 0
    assert pairs.counts.shape == (3, 3)


def make_pairs(size: int) -> Pairs:
    none = np.zeros((0, 1), np.int32)
    return Pairs(none, none, np.zeros(size, np.int32), np.zeros((size, 3)))


def test_the_cache_finds_each_frame_once() -> None:
    cache = PairCache(budget_bytes=10_000)
    first = cache.get("a", lambda: make_pairs(10))
    again = cache.get("a", lambda: pytest.fail("found twice"))
    assert again is first
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)


def test_the_cache_stays_within_its_budget() -> None:
    one = make_pairs(10)
    cache = PairCache(budget_bytes=2 * one.nbytes)
    for key in range(5):
        cache.get(key, lambda: make_pairs(10))
    assert len(cache) == 2
    assert cache.nbytes == 2 * one.nbytes
    assert cache.get(4, lambda: one) is one
