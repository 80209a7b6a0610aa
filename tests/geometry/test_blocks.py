"""Blocks of space: every atom belongs to one, and sees in its block's halo what it sees in the whole frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config.cutoff import Cutoff
from lockstep.geometry import blocks
from lockstep.geometry.blocks import A_NET, divide, divide_by_type
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


def price(owner: np.ndarray, types: np.ndarray, parts: int, a_net: int) -> int:
    """What the part that pays most has to, in atoms."""
    return max(
        int((owner == part).sum()) + a_net * len(set(types[owner == part])) for part in range(parts) if part in owner
    )


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**20), n_atoms=st.integers(1, 300), parts=st.integers(2, 5), frames=st.integers(1, 25))
def test_parts_by_type_have_every_atom_once_and_pay_less_than_blocks(seed, n_atoms, parts, frames):
    _, types = frame(seed, n_atoms, CELLS["cube"])
    owner = divide_by_type(types, parts, frames)
    if owner is None:
        return
    assert ((owner >= 0) == (types >= 0)).all()
    assert owner.max() < parts
    a_net = A_NET // frames
    kinds, atoms = len(set(types[types >= 0])), int((types >= 0).sum())
    assert price(owner, types, parts, a_net) < -(-atoms // parts) + a_net * kinds


def test_parts_of_water_are_equal_with_what_they_pay():
    types = np.repeat([0, 1], [64, 128])
    owner = divide_by_type(types, 2)
    counts = [np.bincount(types[owner == part], minlength=2).tolist() for part in range(2)]
    assert counts == [[0, 106], [64, 22]]


@pytest.mark.parametrize(
    ("types", "parts", "frames"),
    [(np.zeros(50, dtype=int), 2, 1), (np.arange(600) % 2, 2, 1), (np.arange(100) % 2, 2, 8), (np.full(3, -1), 2, 1)],
    ids=["one type", "many atoms", "many frames", "padding alone"],
)
def test_blocks_of_space_do_where_types_gain_nothing(types, parts, frames):
    assert divide_by_type(types, parts, frames) is None
