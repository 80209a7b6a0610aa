"""Blocks of space: every atom belongs to one, and sees in its block's halo what it sees in the whole frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config.cutoff import Cutoff
from lockstep.geometry import blocks
from lockstep.geometry.blocks import divide
from lockstep.geometry.pairs import find_pairs

CELLS = {
    "none": None,
    "cube": np.diag([11.0, 12.0, 13.0]),
    "long": np.diag([40.0, 7.0, 7.0]),
    "small": np.diag([2.5, 3.0, 2.8]),
    "oblique": np.array([[9.0, 0.0, 0.0], [-5.0, 8.0, 0.0], [3.0, 4.0, 10.0]]),
}


def frame(seed: int, n_atoms: int, cell: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Atoms anywhere, in the cell or far outside of it, some of them padding."""
    rng = np.random.default_rng(seed)
    box = np.eye(3) * 12.0 if cell is None else cell
    coord = rng.uniform(-1.5, 2.5, (n_atoms, 3)) @ box
    types = rng.integers(-1, 3, n_atoms)
    return coord, types


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("worth", [0.0, 1e9], ids=["whole frame", "halo"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**20), n_atoms=st.integers(1, 40), parts=st.integers(1, 5))
def test_the_neighbours_of_all_blocks_are_those_of_the_frame(cell, worth, seed, n_atoms, parts):
    coord, types = frame(seed, n_atoms, cell)
    cutoff = Cutoff(4.0, 1.0, sel=(4000, 4000, 4000))
    whole = find_pairs(coord, cell, types, cutoff)
    owner = divide(coord, cell, types, parts)
    assert ((owner >= 0) == (types >= 0)).all()
    before, blocks._WORTH = blocks._WORTH, worth
    try:
        shares = [find_pairs(coord, cell, types, cutoff, owner == part) for part in range(parts)]
    finally:
        blocks._WORTH = before

    assert (sum(share.counts for share in shares) == whole.counts).all()
    for part, share in enumerate(shares):
        own = np.repeat(owner == part, whole.counts.sum(axis=1))
        assert share.counts[owner != part].sum() == 0
        assert sorted_rows(share.neighbour, share.vector) == pytest.approx(
            sorted_rows(whole.neighbour[own], whole.vector[own]), abs=1e-9
        )


def sorted_rows(neighbour: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Pairs in an order that does not depend on how they were found."""
    rows = np.column_stack([neighbour, vector])
    return rows[np.lexsort(np.round(rows, 6).T)]


@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_blocks_have_their_share_of_the_atoms(parts):
    coord, _ = frame(1, 100, CELLS["cube"])
    owner = divide(coord, CELLS["cube"], np.zeros(100, dtype=np.int64), parts)
    sizes = np.bincount(owner, minlength=parts)
    assert sizes.max() - sizes.min() <= 2


def test_there_may_be_more_blocks_than_atoms():
    coord, types = frame(2, 3, None)
    owner = divide(coord, None, np.zeros_like(types), 5)
    assert sorted(owner) == sorted(set(owner))
