"""The search for neighbours itself."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import UserError

Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Centre and neighbour of each pair, and the vector from one to the other."""
_MOST_PAIRS = 1e8
"""In one frame: several GB."""


def all_pairs(coord: NDArray, cell: NDArray | None, rcut: float) -> Found:
    """All pairs within the cutoff, each in both directions."""
    # Imported here: the library is loaded by the first worker that needs it, not by `import lockstep`.
    from vesin import NeighborList

    if len(coord) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    # One thread: frames are small and already spread over the loader's threads and the ranks.
    search = NeighborList(cutoff=rcut, full_list=True, n_threads=1)
    box = np.zeros((3, 3)) if cell is None else np.ascontiguousarray(cell)
    if cell is not None:
        _refuse_too_many(len(coord), box, rcut)
    i, j, vector = search.compute(np.ascontiguousarray(coord), box, cell is not None, quantities="ijD")
    return i.astype(np.int64), j.astype(np.int64), vector


def _refuse_too_many(n_atoms: int, cell: NDArray, rcut: float) -> None:
    """Stop before the images of a small cell within a large cutoff take all memory."""
    # In plain numbers: NumPy would take ten times as long for nine of them.
    (a, b, c), (d, e, f), (g, h, i) = cell.tolist()
    volume = abs(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))
    pairs = n_atoms**2 * 4 / 3 * math.pi * rcut**3 / max(volume, 1e-30)
    if pairs > _MOST_PAIRS:
        raise UserError(
            f"a frame of {n_atoms} atoms in {volume:.3g} cubic Angstrom has some {pairs:.1e} pairs within {rcut:g}"
            " Angstrom",
            where="model.descriptor.rcut",
            value=rcut,
            remedy="use a shorter cutoff; 6 to 9 Angstrom are usual",
        )
