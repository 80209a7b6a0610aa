"""Neighbour pairs of one frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.config.cutoff import Cutoff
from lockstep.data import MicroBatch
from lockstep.errors import UserError
from lockstep.geometry.blocks import block_pairs
from lockstep.geometry.search import all_pairs

SAME_PLACE = 1e-3
"""Angstrom: no two atoms come as close, however hot."""


class SamePlaceError(UserError):
    """Two atoms of a frame are at one place, where neither an energy nor a direction is defined."""

    def __init__(self, first: int, second: int, distance: float, **where: str) -> None:
        what = f"atoms {first} and {second} are" if first != second else f"atom {first} and its own image are"
        super().__init__(
            f"{what} {distance:.2g} Angstrom apart", remedy="remove the doubled atom, or the frame", **where
        )


@dataclass(frozen=True)
class Pairs:
    """The neighbours of every atom of a frame, ordered by centre and then by the neighbour's type.

    Attributes:
        counts: [n, ntypes] how many pairs of each neighbour type an atom has.
        occupied: [n, ntypes] how many slots are taken. Neighbours of an excluded type take slots without being
            paired: DeePMD-kit masks them to nothing, and does not count their slots as empty.
        neighbour: [P] the neighbour's number within the frame.
        vector: [P, 3] from the centre to the neighbour's image, in Angstrom.
        dropped: neighbours that found no slot because `sel` was too small.
    """

    counts: NDArray[np.int32]
    occupied: NDArray[np.int32]
    neighbour: NDArray[np.int32]
    vector: NDArray[np.floating]
    dropped: int = 0

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.occupied.nbytes + self.neighbour.nbytes + self.vector.nbytes

    @cached_property
    def closest(self) -> float:
        """The distance of the closest pair, in Angstrom; infinite where there is none."""
        squares = np.einsum("pc,pc->p", self.vector, self.vector)
        return float(squares.min(initial=np.inf)) ** 0.5

    def of(self, own: NDArray[np.bool_]) -> Pairs:
        """Those whose centres are `own` [n]; `dropped` stays that of the whole frame."""
        kept = np.repeat(own, self.counts.sum(axis=1))
        mask = own[:, None]
        return Pairs(self.counts * mask, self.occupied * mask, self.neighbour[kept], self.vector[kept], self.dropped)

    def fit(self, cutoff: Cutoff) -> bool:
        """Whether all neighbours have a slot in a cutoff with the same radius and excluded types."""
        if cutoff.shared is not None and self.occupied.sum(axis=1).max(initial=0) > cutoff.shared:
            return False
        return bool((self.occupied <= np.asarray(cutoff.sel)).all())


def find_pairs(
    coord: NDArray, cell: NDArray | None, types: NDArray, cutoff: Cutoff, own: NDArray[np.bool_] | None = None
) -> Pairs:
    """Find all pairs within the cutoff, for a cell of any shape or for none.

    Atoms of type -1 (padding of mixed-type systems) are nobody's neighbours. Two atoms at one place are refused. With
    `own` [n], only these atoms have neighbours.
    """
    real = np.flatnonzero(types >= 0)
    if own is None:
        centre, neighbour, vector = all_pairs(coord[real], cell, cutoff.rcut)
    else:
        centre, neighbour, vector = block_pairs(coord[real], cell, cutoff.rcut, own[real])
    centre, neighbour = real[centre], real[neighbour]
    _refuse_same_place(centre, neighbour, vector)
    everyone = len(centre)
    if cutoff.shared is not None:
        kept = _nearest(centre, vector, cutoff.shared)
        centre, neighbour, vector = centre[kept], neighbour[kept], vector[kept]
    group = centre * cutoff.ntypes + types[neighbour]
    found = np.bincount(group, minlength=len(types) * cutoff.ntypes).reshape(len(types), cutoff.ntypes)
    occupied = np.minimum(found, cutoff.sel).astype(np.int32)
    counts = occupied
    order = _grouped(group, vector, found, cutoff)
    if cutoff.exclude:
        allowed = _allowed_types(cutoff)
        counts = np.where(allowed[types], occupied, 0).astype(np.int32)
        order = order[allowed[types[centre], types[neighbour]][order]]
    return Pairs(
        counts,
        occupied,
        neighbour[order].astype(np.int32),
        vector[order],
        dropped=everyone - int(occupied.sum()),
    )


def batch_pairs(batch: MicroBatch, frame: int, cutoff: Cutoff, own: NDArray[np.bool_] | None = None) -> Pairs:
    """The pairs of a frame of a micro-batch; atoms at one place are refused with its name on disk."""
    cell = None if batch.cell is None else batch.cell[frame]
    try:
        return find_pairs(batch.coord[frame], cell, batch.types[frame], cutoff, own)
    except SamePlaceError as error:
        raise batch.refusal(frame, error.reason, error.remedy) from error


def has_close_atoms(batch: MicroBatch, distance: float) -> NDArray[np.bool_]:
    """[B] whether two atoms of a frame are closer than `distance`, in whatever image of the cell."""
    cells = [None] * len(batch.types) if batch.cell is None else list(batch.cell)
    frames = zip(batch.coord, cells, batch.types, strict=True)
    return np.array([len(all_pairs(coord[types >= 0], cell, distance)[0]) > 0 for coord, cell, types in frames])


def _refuse_same_place(centre: NDArray, neighbour: NDArray, vector: NDArray) -> None:
    # One component first: that leaves few pairs to look at closely.
    near = np.flatnonzero(np.abs(vector[:, 0]) < SAME_PLACE)
    distance = np.linalg.norm(vector[near], axis=1)
    if len(near) and distance.min() < SAME_PLACE:
        pair = near[distance.argmin()]
        raise SamePlaceError(int(centre[pair]), int(neighbour[pair]), float(distance.min()))


def _nearest(centre: NDArray, vector: NDArray, limit: int) -> NDArray:
    """Which pairs are among the `limit` nearest of their centre."""
    counts = np.bincount(centre)
    if counts.max(initial=0) <= limit:
        return np.arange(len(centre))
    order = np.lexsort((np.einsum("pc,pc->p", vector, vector), centre))
    return np.sort(order[slot_numbers(counts) < limit])


def _grouped(group: NDArray, vector: NDArray, found: NDArray, cutoff: Cutoff) -> NDArray:
    """The order that brings pairs together by group, without those for which the group has no slot left."""
    if (found <= np.asarray(cutoff.sel)).all():
        return np.argsort(group, kind="stable")
    order = np.lexsort((np.einsum("pc,pc->p", vector, vector), group))
    limit = np.broadcast_to(np.asarray(cutoff.sel), found.shape)
    return order[slot_numbers(found) < np.repeat(limit.ravel(), found.ravel())]


def _allowed_types(cutoff: Cutoff) -> NDArray[np.bool_]:
    allowed = np.ones((cutoff.ntypes, cutoff.ntypes), dtype=bool)
    for a, b in cutoff.exclude:
        allowed[a, b] = allowed[b, a] = False
    return allowed


def slot_numbers(counts: NDArray) -> NDArray[np.int64]:
    """Number the members of each group 0, 1, 2, ... in the order of the groups."""
    sizes = counts.ravel()
    starts = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
