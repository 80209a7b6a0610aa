"""Frames that no matter can be in: coordinates beyond all digits, cells without room for an atom."""

from __future__ import annotations

import numpy as np

_FARTHEST = 1e7
"""Angstrom. A distance of this size keeps nine digits after the point in float64, a larger one soon none."""
_FLAT = 1e-6
"""Volume over the product of the edge lengths below which a cell cannot be a crystal's."""
_NEXT, _LAST = [1, 2, 0], [2, 0, 1]
"""For each of three axes those that make a vector product with it; `np.cross` is slower by far for a few vectors."""
_THINNEST = 0.1
"""Angstrom between two faces of a cell: a search for neighbours would go through hundreds of its images."""


def far_atom(coord: np.ndarray) -> tuple[int, int] | None:
    """(frame, atom) of coordinates [B, n, 3] that cannot be meant."""
    if coord.size and max(coord.max(), -coord.min()) < _FARTHEST:
        return None
    bad = np.argwhere(~(np.abs(coord) < _FARTHEST))
    return (int(bad[0, 0]), int(bad[0, 1])) if len(bad) else None


def bad_cell(cells: np.ndarray) -> tuple[int, str] | None:
    """(frame, what it is) of cells [B, 3, 3] that cannot be meant."""
    edges = np.sqrt((cells * cells).sum(axis=2))
    second, third = cells[:, _NEXT], cells[:, _LAST]
    faces = second[:, :, _NEXT] * third[:, :, _LAST] - second[:, :, _LAST] * third[:, :, _NEXT]
    volumes = np.abs((cells[:, 0] * faces[:, 0]).sum(axis=1))
    flat = volumes <= _FLAT * edges.prod(axis=1)
    if flat.any():
        frame = int(np.flatnonzero(flat)[0])
        return frame, f"is flat: {cells[frame].round(4).tolist()}"
    heights = volumes / np.sqrt((faces * faces).sum(axis=2)).max(axis=1)
    thin = ~(heights >= _THINNEST) | ~(edges.max(axis=1) < _FARTHEST)
    if thin.any():
        frame = int(np.flatnonzero(thin)[0])
        return frame, f"has no room for an atom or no end: {cells[frame].tolist()}, {heights[frame]:.2g} Angstrom thick"
    return None
