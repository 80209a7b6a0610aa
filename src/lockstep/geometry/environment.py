"""A micro-batch seen from its centres."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.basis import SplineBasis
from lockstep.geometry.layout import Layout
from lockstep.geometry.moments import Moments, build_moments
from lockstep.geometry.pairs import Pairs
from lockstep.geometry.radial import Cutoff, largest_radial
from lockstep.geometry.rows import Rows, build_rows
from lockstep.geometry.scale import RowScale

Features = Rows | Moments
"""What a network can see of a micro-batch: every neighbour's row, or the rows' moments over a basis."""


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
        features: the network's view.
        transpose: the way back from dE/d(features).
        dropped: neighbours that found no slot.
    """

    n_frames: int
    n_atoms: int
    atom: Tensor
    features: Features
    transpose: Transpose
    dropped: int = 0


class EnvironmentBuilder:
    """Turns neighbour pairs into environments.

    Args:
        dtype: precision of the features; geometry itself is computed in float64.
    """

    def __init__(
        self,
        cutoff: Cutoff,
        scale: RowScale,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.cutoff = cutoff
        self.scale = scale.to(device)
        self.device = torch.device(device)
        self.dtype = dtype

    def build(self, pairs: Sequence[Pairs], types: NDArray, basis: SplineBasis | None = None) -> Environment:
        """Build the environment of frames with the same number of atoms; `types` is [n_frames, n_atoms].

        With a basis its features are moments, unless a pair is closer than the basis reaches: then, as without
        a basis, they are rows.
        """
        layout = Layout.of(pairs, types)
        features, transpose = self._features(layout, basis)
        return Environment(
            n_frames=layout.n_frames,
            n_atoms=layout.n_atoms,
            atom=torch.from_numpy(np.ascontiguousarray(layout.atom)).to(self.device),
            features=features,
            transpose=transpose,
            dropped=layout.dropped,
        )

    def _features(self, layout: Layout, basis: SplineBasis | None) -> tuple[Features, Transpose]:
        if basis is None or largest_radial(layout.vector, self.cutoff) > basis.s_max:
            return build_rows(layout, self.cutoff, self.scale, self.dtype, self.device)
        return build_moments(layout, self.cutoff, self.scale, basis, self.dtype, self.device)
