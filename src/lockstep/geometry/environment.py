"""A micro-batch seen from its centres."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.cutoff import Cutoff
from lockstep.device import upload
from lockstep.geometry.basis import SplineBasis
from lockstep.geometry.layout import Layout
from lockstep.geometry.moments import Moments, build_moments
from lockstep.geometry.pairs import Pairs
from lockstep.geometry.radial import radial_at
from lockstep.geometry.rows import Rows, build_rows
from lockstep.geometry.scale import RowScale
from lockstep.geometry.view import View

Features = Rows | Moments
"""What a network can see of a micro-batch in one view: every neighbour's row, or the rows' moments over a basis."""
Bases = Sequence[SplineBasis | None]
"""For each cutoff the basis that moments are taken over; None for rows."""


_NO_LIMIT = sys.maxsize


class Transpose(Protocol):
    """The linear map from dE/d(features) to forces and virials, and its adjoint."""

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]: ...

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True)
class Environment:
    """All of a micro-batch that depends on coordinates, and nothing that depends on weights.

    Attributes:
        n_frames, n_atoms: the batch's shape, padding atoms included.
        atom: [C] number of each centre among the batch's n_frames * n_atoms atoms, ordered by type.
        features: what the network sees, view by view.
        transposes: for each view the way back from dE/d(features).
        dropped: neighbours that found no slot.
    """

    n_frames: int
    n_atoms: int
    atom: Tensor
    features: tuple[Features, ...]
    transposes: tuple[Transpose, ...]
    dropped: int = 0


class EnvironmentBuilder:
    """Turns neighbour pairs into environments.

    Args:
        cutoffs: what counts as a neighbour; a model may have several cutoffs.
        scales: for each cutoff, what brings the rows to zero mean and unit spread.
        views: how the descriptor looks at the neighbours.
        at_once: how many centres a slice may have whose features are rows, and whose features are moments.
    """

    def __init__(
        self,
        cutoffs: Sequence[Cutoff],
        scales: Sequence[RowScale],
        views: Sequence[View] = (View(),),
        device: torch.device | str = "cpu",
        at_once: tuple[int, int] = (_NO_LIMIT, _NO_LIMIT),
    ) -> None:
        self.cutoffs = tuple(cutoffs)
        self._at_once = at_once
        self.device = torch.device(device)
        self._scales = [scale.to(device) for scale in scales]
        self._views = tuple(views)

    def build(
        self,
        pairs: Sequence[Sequence[Pairs]],
        types: NDArray,
        bases: Bases | None = None,
        own: NDArray[np.bool_] | None = None,
    ) -> Environment:
        """Build the environment of frames with the same number of atoms.

        Args:
            pairs: for each cutoff, the pairs of every frame.
            types: [n_frames, n_atoms].
            bases: for each cutoff the basis of its moments. Without one, or when a pair is closer than the basis
                reaches, the features are rows.
            own: [n_frames, n_atoms] which atoms are centres here, where several ranks share the frames.
        """
        return self._build(pairs, types, self._reaching(pairs, bases), own)

    def slices(
        self,
        pairs: Sequence[Sequence[Pairs]],
        types: NDArray,
        bases: Bases | None = None,
        own: NDArray[np.bool_] | None = None,
    ) -> Iterator[Environment]:
        """The same in slices of a bounded number of centres, whose predictions add up; mostly it is one."""
        used = self._reaching(pairs, bases)
        centres = types >= 0 if own is None else own
        most = self._at_once[0 if None in used else 1]
        if np.count_nonzero(centres) <= most:
            yield self._build(pairs, types, used, own)
            return
        for part in cut(centres, most):
            some = [[found.of(each) for found, each in zip(frames, part, strict=True)] for frames in pairs]
            yield self._build(some, types, used, part)

    def _build(
        self,
        pairs: Sequence[Sequence[Pairs]],
        types: NDArray,
        used: Bases,
        own: NDArray[np.bool_] | None,
    ) -> Environment:
        layouts = [Layout.of(found, types, own) for found in pairs]
        seen = [self._features(layouts[view.cutoff], used[view.cutoff], view) for view in self._views]
        layout = layouts[0]
        return Environment(
            n_frames=layout.n_frames,
            n_atoms=layout.n_atoms,
            atom=upload(layout.atom, self.device),
            features=tuple(features for features, _ in seen),
            transposes=tuple(transpose for _, transpose in seen),
            dropped=sum(layout.dropped for layout in layouts),
        )

    def _reaching(self, pairs: Sequence[Sequence[Pairs]], bases: Bases | None) -> Bases:
        """The bases that reach as close as the pairs come."""
        if bases is None:
            return (None,) * len(self.cutoffs)
        parts = zip(pairs, self.cutoffs, bases, strict=True)
        return tuple(basis if basis and _reaches(basis, found, cutoff) else None for found, cutoff, basis in parts)

    def _features(self, layout: Layout, basis: SplineBasis | None, view: View) -> tuple[Features, Transpose]:
        cutoff, scale = self.cutoffs[view.cutoff], self._scales[view.cutoff]
        layout = layout.seen(view)
        if basis is None:
            return build_rows(layout, cutoff, scale, view, self.device)
        return build_moments(layout, cutoff, scale, basis, view, self.device)


def cut(centres: NDArray[np.bool_], most: int) -> Iterator[NDArray[np.bool_]]:
    """Masks of at most so many of the centres, which have each of them once; as even as they can be."""
    flat = np.flatnonzero(centres)
    for share in np.array_split(flat, -(-len(flat) // most)):
        part = np.zeros(centres.size, dtype=bool)
        part[share] = True
        yield part.reshape(centres.shape)


def _reaches(basis: SplineBasis, pairs: Sequence[Pairs], cutoff: Cutoff) -> bool:
    return all(radial_at(found.closest, cutoff) <= basis.s_max for found in pairs)
