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
