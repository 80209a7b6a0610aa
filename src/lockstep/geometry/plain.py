"""What the compiled loops over pairs do, in plain tensor operations: for other devices, and where numba is missing."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lockstep.device import upload
from lockstep.geometry.basis import TOUCHED
from lockstep.geometry.constants import evaluate, spline_tables
from lockstep.geometry.layout import Layout


class _PlainTranspose:
    """Which of the flattened moments each pair touches, and which atoms.

    Args:
        size: of the basis.
        pair: [P, columns] as `kernels` describes them.
        cell: [P] the interval of each pair.
    """

    components: int

    def __init__(self, layout: Layout, size: int, pair: Tensor, cell: Tensor) -> None:
        device = pair.device
        self._n_frames, self._n_atoms = layout.n_frames, layout.n_atoms
        self._shape = (len(layout.atom), self.components, layout.counts.shape[1] * size)
        self._offset, self._radial, self._angular, self._radial_slope = pair[:, :4].unbind(1)
        self._turn, self._over_r, self._position_slope, self._distance = pair[:, 4:8].unbind(1)
        self._unit = pair[:, 8:]
        self._centre = upload(layout.pair_centre(), device)
        self._neighbour = upload(layout.neighbour, device)
        self._frame = upload(layout.pair_frame(), device)
        column = upload(layout.pair_column() * size, device) + cell
        row = upload(layout.pair_row() * self.components, device)
        components = torch.arange(self.components, device=device)[None, :, None]
        splines = torch.arange(TOUCHED, device=device)
        self._index = (row[:, None, None] + components) * self._shape[2] + column[:, None, None] + splines

    @cached_property
    def _value(self) -> Tensor:
        return evaluate(self._offset, spline_tables(self._offset.dtype, self._offset.device)[0])

    @cached_property
    def _slope(self) -> Tensor:
        return evaluate(self._offset, spline_tables(self._offset.dtype, self._offset.device)[1])

    @cached_property
    def _vector(self) -> Tensor:
        return (self._unit * self._distance[:, None]).to(torch.float64)

    def _gathered(self, gradient: Tensor) -> Tensor:
        """[P, components, TOUCHED] what of dE/d(moments) each pair touches."""
        return gradient.reshape(-1)[self._index]

    def _scattered(self, parts: Tensor, dtype: torch.dtype) -> Tensor:
        """Its transpose: moments from the parts of each pair."""
        result = torch.zeros(self._shape, dtype=dtype, device=parts.device)
        result.view(-1).index_add_(0, self._index.reshape(-1), parts.reshape(-1).to(dtype))
        return result

    def _summed(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] from the derivative of the energy by each pair's vector [P, 3]."""
        pair = pair.to(torch.float64)
        force = torch.zeros(self._n_frames * self._n_atoms, 3, dtype=torch.float64, device=pair.device)
        force.index_add_(0, self._centre, pair).index_add_(0, self._neighbour, pair, alpha=-1.0)
        virial = torch.zeros(self._n_frames, 3, 3, dtype=torch.float64, device=pair.device)
        virial.index_add_(0, self._frame, pair[:, :, None] * self._vector[:, None, :], alpha=-1.0)
        return force.view(self._n_frames, self._n_atoms, 3), virial

    def _spread(self, force_bar: Tensor, virial_bar: Tensor) -> Tensor:
        """Its transpose: [P, 3] from cotangents of forces and virials."""
        flat = force_bar.reshape(-1, 3)
        bar = flat[self._centre] - flat[self._neighbour]
        bar = bar - torch.einsum("pab,pb->pa", virial_bar[self._frame], self._vector)
        return bar.to(self._unit.dtype)


class PlainMomentTranspose(_PlainTranspose):
    """From rows to moments, from dE/d(moments) to forces, and the adjoint of that."""

    components = 4

    @cached_property
    def _row(self) -> Tensor:
        return torch.cat([self._radial.unsqueeze(1), self._angular.unsqueeze(1) * self._unit], dim=1)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] without empty slots."""
        return self._scattered(self._row[:, :, None] * self._value[:, None, :], dtype)

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        g = self._gathered(gradient)
        h, e = (g * self._value[:, None]).sum(-1), (g * self._slope[:, None]).sum(-1)
        stretch = (
            self._radial_slope * h[:, 0]
            + self._position_slope * (self._row * e).sum(1)
            + self._turn * (self._unit * h[:, 1:]).sum(1)
        )
        return self._summed(stretch[:, None] * self._unit + self._over_r[:, None] * h[:, 1:])

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] what `forces` turns cotangents of forces and virials into."""
        bar = self._spread(force_bar, virial_bar)
        along = (self._unit * bar).sum(1)
        angular = (self._turn * along)[:, None] * self._unit + self._over_r[:, None] * bar
        h = torch.cat([(self._radial_slope * along).unsqueeze(1), angular], dim=1)
        e = (self._position_slope * along)[:, None] * self._row
        return self._scattered(h[:, :, None] * self._value[:, None, :] + e[:, :, None] * self._slope[:, None, :], dtype)


class PlainCountTranspose(_PlainTranspose):
    """The same without rows: every neighbour counts as one."""

    components = 1

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] without empty slots."""
        return self._scattered(self._value, dtype)

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        through = (self._gathered(gradient)[:, 0] * self._slope).sum(-1)
        return self._summed((self._position_slope * through)[:, None] * self._unit)

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 1, columns * size] what `forces` turns cotangents of forces and virials into."""
        along = (self._unit * self._spread(force_bar, virial_bar)).sum(1)
        return self._scattered((self._position_slope * along)[:, None] * self._slope, dtype)
