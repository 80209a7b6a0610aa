"""Where centres and pairs of a micro-batch go: centres in order of type, pairs in the order they were found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.config.cutoff import Cutoff
from lockstep.geometry.pairs import Pairs
from lockstep.geometry.view import Columns, View
from lockstep.team import n_shares

_WORTH_IT = 4096
"""Pairs that make some hundred microseconds of a loop, for which another thread gains more than it costs."""


@dataclass(frozen=True)
class Share:
    """Consecutive atoms and their pairs: what one thread works through."""

    number: int
    atoms: slice
    pairs: slice


@dataclass(frozen=True)
class Layout:
    """The book-keeping of a micro-batch.

    Attributes:
        n_frames, n_atoms: the batch's shape, padding atoms included.
        atom: [C] number of each centre among all atoms of the batch; centres are in order of type.
        centre_type: [C] its type.
        centre_blocks: for each centre type, its range of centres.
        row_of_atom: [n_frames * n_atoms] which centre an atom is; padding atoms are none, and have no pairs.
        first_type: [n_frames] the type of each frame's first atom.
        present: the types that occur among all atoms.
        columns: the neighbour types that are told apart; empty where none are.
        counts, occupied: [n_frames * n_atoms, columns] as in `Pairs`, for all frames.
        neighbour: [P] number of the neighbour among all atoms of the batch.
        vector: [P, 3] from the centre to the neighbour.
        frame_pairs: for each frame, its range of pairs.
        dropped: neighbours that found no slot.
    """

    n_frames: int
    n_atoms: int
    atom: NDArray[np.int64]
    centre_type: NDArray[np.int64]
    centre_blocks: tuple[slice, ...]
    row_of_atom: NDArray[np.int64]
    first_type: NDArray[np.int64]
    present: tuple[int, ...]
    columns: tuple[int, ...]
    counts: NDArray[np.int32]
    occupied: NDArray[np.int32]
    neighbour: NDArray[np.int64]
    vector: NDArray[np.float64]
    frame_pairs: tuple[slice, ...]
    dropped: int

    @classmethod
    def of(cls, pairs: Sequence[Pairs], types: NDArray, own: NDArray[np.bool_] | None = None) -> Layout:
        """Lay out frames with the same number of atoms; `types` is [n_frames, n_atoms].

        With `own`, of the same shape, only these atoms are centres, and only they have pairs.
        """
        n_frames, n_atoms = types.shape
        ntypes = pairs[0].counts.shape[1]
        flat_types = types.ravel() if own is None else np.where(own, types, -1).ravel()
        atom = np.argsort(flat_types, kind="stable")
        bounds = np.searchsorted(flat_types[atom], np.arange(ntypes + 1))
        atom = atom[bounds[0] :]
        row_of_atom = np.zeros(len(flat_types), dtype=np.int64)
        row_of_atom[atom] = np.arange(len(atom))
        per_frame = np.array([len(p.neighbour) for p in pairs])
        first_atom = np.repeat(np.arange(n_frames) * n_atoms, per_frame)
        return cls(
            n_frames=n_frames,
            n_atoms=n_atoms,
            atom=atom,
            centre_type=flat_types[atom],
            centre_blocks=ranges(np.diff(bounds)),
            row_of_atom=row_of_atom,
            first_type=types[:, 0].astype(np.int64),
            present=tuple(np.unique(types[types >= 0]).tolist()),
            columns=tuple(range(ntypes)),
            counts=joined([p.counts for p in pairs]),
            occupied=joined([p.occupied for p in pairs]),
            neighbour=joined([p.neighbour for p in pairs]) + first_atom,
            vector=joined([p.vector for p in pairs]),
            frame_pairs=ranges(per_frame),
            dropped=sum(p.dropped for p in pairs),
        )

    def seen(self, view: View) -> Layout:
        """The same with columns for the neighbour types that a view tells apart."""
        if view.columns is Columns.EVERY:
            return self
        if view.columns is Columns.ONE:
            counts, occupied = (
                array.sum(axis=1, keepdims=True, dtype=np.int32) for array in (self.counts, self.occupied)
            )
            return replace(self, columns=(), counts=counts, occupied=occupied)
        present = list(self.present) or [0]
        counts, occupied = (np.ascontiguousarray(array[:, present]) for array in (self.counts, self.occupied))
        return replace(self, columns=tuple(present), counts=counts, occupied=occupied)

    def empty_slots(self, cutoff: Cutoff) -> NDArray[np.int64]:
        """[C, columns] how many slots of each centre nobody takes.

        Slots shared by all types belong to no type when they are empty. DeePMD-kit gives them that of the frame's
        first atom, and models have to agree with it.
        """
        occupied = self.occupied[self.atom]
        if cutoff.shared is None and self.columns:
            return np.asarray(cutoff.sel, dtype=np.int64)[list(self.columns)] - occupied
        left = cutoff.n_slots - occupied.sum(axis=1, dtype=np.int64)
        if not self.columns:
            return left[:, None]
        empty = np.zeros(occupied.shape, dtype=np.int64)
        column = np.searchsorted(self.columns, self.first_type[self.atom // self.n_atoms])
        empty[np.arange(len(left)), column] = left
        return empty

    def excluded_slots(self) -> NDArray[np.int32]:
        """[C, columns] how many slots of each centre are taken by neighbours of excluded types."""
        return (self.occupied - self.counts)[self.atom]

    def atom_type(self) -> NDArray[np.int64]:
        """[n_frames * n_atoms] the type of each atom; 0 for padding atoms, which have no pairs."""
        types = np.zeros_like(self.row_of_atom)
        types[self.atom] = self.centre_type
        return types

    def shares(self) -> list[Share]:
        """All atoms, divided so that the threads of this moment get about as many pairs each."""
        number = n_shares(len(self.neighbour), _WORTH_IT)
        if number == 1:
            return [Share(0, slice(0, len(self.counts)), slice(0, len(self.neighbour)))]
        ends = np.concatenate([[0], np.cumsum(self.counts.sum(axis=1))])
        bounds = np.searchsorted(ends, np.arange(1, number) * (ends[-1] / number)).tolist()
        atoms = [slice(*bound) for bound in itertools.pairwise([0, *bounds, len(self.counts)])]
        return [Share(k, own, slice(int(ends[own.start]), int(ends[own.stop]))) for k, own in enumerate(atoms)]

    def pair_row(self) -> NDArray[np.int64]:
        """[P] the centre of each pair."""
        return np.repeat(self.row_of_atom, self.counts.sum(axis=1))

    def pair_centre(self) -> NDArray[np.int64]:
        """[P] the centre of each pair, by its number among all atoms of the batch."""
        return np.repeat(np.arange(len(self.row_of_atom)), self.counts.sum(axis=1))

    def pair_frame(self) -> NDArray[np.int64]:
        """[P] the frame of each pair."""
        return np.repeat(np.arange(self.n_frames), [pairs.stop - pairs.start for pairs in self.frame_pairs])

    def pair_column(self) -> NDArray[np.int64]:
        """[P] the number of the column that the neighbour of each pair belongs to."""
        n_atoms, n_columns = self.counts.shape
        return np.repeat(np.tile(np.arange(n_columns), n_atoms), self.counts.ravel())


def ranges(sizes: NDArray) -> tuple[slice, ...]:
    """Consecutive ranges of the given sizes."""
    ends = np.cumsum(sizes)
    return tuple(slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True))


def joined(arrays: Sequence[NDArray]) -> NDArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
