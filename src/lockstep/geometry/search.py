"""The search for neighbours itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Centre and neighbour of each pair, and the vector from one to the other."""


def all_pairs(coord: NDArray, cell: NDArray | None, rcut: float) -> Found:
    """All pairs within the cutoff, each in both directions."""
    # Imported here: the library is loaded by the first worker that needs it, not by `import lockstep`.
    from vesin import NeighborList

    if len(coord) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3))
    # One thread: frames are small and already spread over the loader's threads and the ranks.
    search = NeighborList(cutoff=rcut, full_list=True, n_threads=1)
    box = np.zeros((3, 3)) if cell is None else np.ascontiguousarray(cell)
    i, j, vector = search.compute(np.ascontiguousarray(coord), box, cell is not None, quantities="ijD")
    return i.astype(np.int64), j.astype(np.int64), vector
