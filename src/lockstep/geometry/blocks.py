"""A frame divided into blocks of space, one for each rank that shares it, and the neighbours of a block's atoms.

Blocks are cut by recursive bisection: the atoms are ordered along the longest side of what is to be divided, and cut
where both parts have their share of the atoms. A block's atoms see neighbours in the block and in a halo around it, as
wide as the cutoff, whatever the cell: images of the halo are laid out explicitly, so that the search itself needs no
cell at all.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from lockstep.geometry.search import Found, all_pairs

A_NET = 20
"""What a net costs a part beside its atoms, in atoms: both grow with the net. From those of the water example on an AMD
EPYC, where 96 atoms with one net take 8.7 ms and with two 10.5."""
_FEW = 192
"""Atoms of a part up to which that matters: a thirtieth at this number."""
_WORTH = 1.5
"""Images of a halo, in atoms of the frame, beyond which looking at the whole frame is quicker."""


def divide(coord: NDArray, cell: NDArray | None, types: NDArray, parts: int) -> NDArray[np.int64]:
    """[n] the block, from 0 to parts - 1, that each atom belongs to; -1 for padding. Blocks may be empty."""
    owner = np.full(len(types), -1, dtype=np.int64)
    position = coord if cell is None else _wrapped(coord, cell) @ cell
    pending = [(np.flatnonzero(types >= 0), 0, parts)]
    while pending:
        atoms, first, count = pending.pop()
        if count == 1 or len(atoms) == 0:
            owner[atoms] = first
            continue
        axis = int(np.ptp(position[atoms], axis=0).argmax())
        atoms = atoms[np.argsort(position[atoms, axis], kind="stable")]
        left = count // 2
        cut = round(len(atoms) * left / count)
        pending += [(atoms[:cut], first, left), (atoms[cut:], first + left, count - left)]
    return owner


def divide_by_type(types: NDArray, parts: int, frames: int = 1) -> NDArray[np.int64] | None:
    """The same for few atoms with a net for each type; None where blocks of space do as well.

    There a part pays for every net that it needs, whose matrices it has to fetch, as for some atoms more. So the atoms
    are cut in order of type, where parts come out equal with what they pay. `frames` of this kind pay together.
    """
    atoms, a_net = np.flatnonzero(types >= 0), A_NET // frames
    if not a_net or frames * len(atoms) > _FEW * parts:
        return None
    counts = np.bincount(types[atoms])
    kinds = np.argsort(-counts, kind="stable")
    ends = np.cumsum(counts[kinds])
    even = -(-len(atoms) // parts) + a_net * int(np.count_nonzero(counts))
    for limit in range(even - 1):
        cuts = _fill(ends, parts, limit, a_net)
        if cuts[-1] == len(atoms):
            break
    else:
        return None
    owner = np.full(len(types), -1, dtype=np.int64)
    rank_of_kind = np.argsort(kinds)
    in_order = atoms[np.argsort(rank_of_kind[types[atoms]], kind="stable")]
    owner[in_order] = np.searchsorted(cuts, np.arange(len(atoms)), side="right")
    return owner


def _fill(ends: NDArray, parts: int, limit: int, a_net: int) -> list[int]:
    """Where parts end that take atoms, of which kind after kind ends at `ends`, until they have paid the limit."""
    place, kind, cuts = 0, 0, []
    for _ in range(parts):
        left = limit
        while kind < len(ends) and left > a_net:
            taken = min(int(ends[kind]) - place, left - a_net)
            place, left = place + taken, left - a_net - taken
            kind += place == ends[kind]
        cuts.append(place)
    return cuts


def block_pairs(coord: NDArray, cell: NDArray | None, rcut: float, own: NDArray[np.bool_]) -> Found:
    """Centre, neighbour and vector of all pairs whose centre is an own atom."""
    if not own.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    atoms, places = _cluster(coord, cell, rcut, own)
    n_own = int(own.sum())
    if len(atoms) > _WORTH * len(coord):
        centre, neighbour, vector = all_pairs(coord, cell, rcut)
        kept = own[centre]
        return centre[kept], neighbour[kept], vector[kept]
    centre, neighbour, vector = all_pairs(places, None, rcut)
    kept = centre < n_own
    return atoms[centre[kept]], atoms[neighbour[kept]], vector[kept]


def _cluster(
    coord: NDArray, cell: NDArray | None, rcut: float, own: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The own atoms and all images of atoms around them: whose they are, and where. Own atoms come first."""
    if cell is None:
        low, high = coord[own].min(axis=0) - rcut, coord[own].max(axis=0) + rcut
        halo = ~own & ((coord >= low) & (coord <= high)).all(axis=1)
        atoms = np.concatenate([np.flatnonzero(own), np.flatnonzero(halo)])
        return atoms, coord[atoms]
    place = _wrapped(coord, cell)
    # In lattice coordinates the cutoff is as wide as it is long compared with the distance of the lattice planes.
    margin = rcut * np.linalg.norm(np.linalg.inv(cell), axis=0)
    low, high = place[own].min(axis=0) - margin, place[own].max(axis=0) + margin
    whose, where = [np.flatnonzero(own)], [place[own]]
    spans = [range(int(np.ceil(a - 1)), int(np.floor(b)) + 1) for a, b in zip(low, high, strict=True)]
    for shift in itertools.product(*spans):
        image = place + shift
        inside = ((image >= low) & (image <= high)).all(axis=1)
        if not any(shift):
            inside &= ~own
        whose.append(np.flatnonzero(inside))
        where.append(image[inside])
    return np.concatenate(whose), np.concatenate(where) @ cell


def _wrapped(coord: NDArray, cell: NDArray) -> NDArray[np.float64]:
    """Lattice coordinates from 0 to 1."""
    lattice = coord @ np.linalg.inv(cell)
    return np.asarray(lattice - np.floor(lattice))
