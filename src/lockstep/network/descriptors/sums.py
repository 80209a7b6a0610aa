"""Descriptors that are sums over slots of row^T N(radial), with an embedding net N for each pair of types.

X comes from the features in one of two ways: from every neighbour's row by the exact nets, or from the rows' moments
by the nets' expansion in splines. Everything after X is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.geometry import Features, Moments, Rows
from lockstep.network.blockwise import products
from lockstep.network.descriptors.base import Descriptor, Embedding

ANY = -1
"""In place of a neighbour type, where a view tells no types apart."""
Embedded = tuple[Embedding, Tensor, list[Tensor]]
"""An embedding, its value [c, s, width] on a block of slots, and its net's slopes."""
Coefficients = list[tuple[slice, Tensor]]
"""For each centre type that occurs, its rows of the flattened moments and its nets' spline coefficients
[columns * size, width]."""


@dataclass(frozen=True)
class RowTape:
    """The exact nets' values and slopes, for each group of centres and each block of slots."""

    features: Rows
    embedded: list[list[Embedded]]


@dataclass(frozen=True)
class MomentTape:
    """The spline coefficients by which moments were multiplied."""

    features: Moments
    coefficients: Coefficients


class SlotSum(Descriptor):
    """X = (sum over views and slots of row^T N(radial)) / norm.

    Attributes:
        width: components of the nets' values.
        norm: what sums are divided by: the number of slots.
    """

    width: int
    norm: float

    @abstractmethod
    def embedding(self, view: int, centre_type: int, neighbour_type: int) -> Embedding:
        """The function that neighbours of a type are summed with (`ANY` where types are not told apart)."""

    @abstractmethod
    def coefficients(self, view: int, features: Moments) -> Coefficients:
        """The spline coefficients of all embeddings of a micro-batch, divided by the norm.

        In float64 whatever the precision, up to the last step: the fit at the ends of the interval amplifies rounding.
        """

    def forward(self, features: Sequence[Features]) -> tuple[Tensor, list[RowTape | MomentTape]]:
        """The sums X [C, components, width] and a tape for `pull_back`."""
        parts = [
            self._from_rows(view, seen) if isinstance(seen, Rows) else self._from_moments(view, seen)
            for view, seen in enumerate(features)
        ]
        x = parts[0][0]
        for more, _ in parts[1:]:
            x = x + more
        return x, [tape for _, tape in parts]

    def pull_back(self, tape: list[RowTape | MomentTape], gradient: Tensor) -> tuple[Tensor, ...]:
        """dE/d(features): for rows [C, S, ...], for moments [C, components, columns * size]."""
        return tuple(
            self._back_to_rows(each, gradient / self.norm)
            if isinstance(each, RowTape)
            else self._back_to_moments(each, gradient)
            for each in tape
        )

    def centre_groups(self, features: Rows) -> list[tuple[int, slice]]:
        """Centres that share their nets: those of one type."""
        return [(t, block) for t, block in enumerate(features.centre_blocks) if block.stop > block.start]

    def _from_rows(self, view: int, features: Rows) -> tuple[Tensor, RowTape]:
        totals, embedded = [], []
        for centre_type, centres in self.centre_groups(features):
            blocks: list[Embedded] = []
            total = features.rows.new_zeros(centres.stop - centres.start, features.view.components, self.width)
            for neighbour_type, slots in zip(features.columns or (ANY,), features.slot_blocks, strict=True):
                block = features.rows[centres, slots]
                radial = features.radial[centres, slots].reshape(-1, 1)
                embedding = self.embedding(view, centre_type, neighbour_type)
                value, slopes = embedding(radial)
                value = value.view(*block.shape[:2], self.width)
                total = torch.baddbmm(total, block.transpose(1, 2), value)
                blocks.append((embedding, value, slopes))
            totals.append(total)
            embedded.append(blocks)
        return torch.cat(totals) / self.norm, RowTape(features, embedded)

    def _back_to_rows(self, tape: RowTape, x_gradient: Tensor) -> Tensor:
        features, groups = tape.features, []
        for (_, centres), blocks in zip(self.centre_groups(features), tape.embedded, strict=True):
            out = x_gradient[centres]
            pieces = []
            for (embedding, value, slopes), slots in zip(blocks, features.slot_blocks, strict=True):
                value_gradient = torch.bmm(features.rows[centres, slots], out).view(-1, self.width)
                through_net = embedding.pull_back(slopes, value_gradient).view(*value.shape[:2], 1)
                pieces.append(self._row_gradient(features, value, out, through_net))
            groups.append(torch.cat(pieces, dim=1))
        return torch.cat(groups)

    def _row_gradient(self, features: Rows, value: Tensor, out: Tensor, through_net: Tensor) -> Tensor:
        """What `RowTranspose` takes: the net's input is the rows' first component, where these are not weighted."""
        if not features.view.angular:
            return through_net
        direct = torch.bmm(value, out.transpose(1, 2))
        if features.view.switched:
            return torch.cat([direct, through_net], dim=-1)
        return torch.cat([direct[..., :1] + through_net, direct[..., 1:]], dim=-1)

    def _from_moments(self, view: int, features: Moments) -> tuple[Tensor, MomentTape]:
        coefficients = self.coefficients(view, features)
        x = products(features.values.flatten(0, 1), coefficients)
        return x.view(-1, features.view.components, self.width), MomentTape(features, coefficients)

    def _back_to_moments(self, tape: MomentTape, x_gradient: Tensor) -> Tensor:
        transposed = [(rows, c.T) for rows, c in tape.coefficients]
        return products(x_gradient.flatten(0, 1), transposed).view_as(tape.features.values)


def by_centre_type(features: Moments, stacked: Tensor) -> Coefficients:
    """Coefficients [types that occur, columns * size, width] with the rows of the flattened moments they belong to."""
    n = features.view.components
    return [
        (slice(n * block.start, n * block.stop), c)
        for (_, block), c in zip(features.present, stacked.unbind(), strict=True)
    ]
