"""Moments of environment rows over a spline basis: all that a network needs of a centre's neighbours.

With an embedding net N(s) = sum_k b_k(s) C_k, the sum over slots of row^T N(s) is A C, where A = sum over slots of
row^T b(s) has no weights in it. A is what this module computes, and the way from dE/dA back to forces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.cutoff import Cutoff
from lockstep.geometry.basis import PIECES, S0, SLOPES, TOUCHED, SplineBasis
from lockstep.geometry.counts import CountTranspose, PlainCountTranspose
from lockstep.geometry.layout import Layout
from lockstep.geometry.radial import radial_terms, switch
from lockstep.geometry.scale import RowScale
from lockstep.geometry.view import View


@dataclass(frozen=True)
class Moments:
    """Moments of the rows, centres grouped by type.

    Attributes:
        view: what the rows are, and which neighbour types they tell apart.
        values: [C, components, columns * size] a block of columns for each neighbour type that is told apart.
        basis: the splines.
        node_radial: [ntypes, nodes] for each centre type the embedding net's input at the basis' nodes.
        centre_blocks: for each centre type, the range of centres.
        columns: the neighbour types that are told apart; empty where none are.
    """

    view: View
    values: Tensor
    basis: SplineBasis
    node_radial: Tensor
    centre_blocks: tuple[slice, ...]
    columns: tuple[int, ...]

    @property
    def present(self) -> list[tuple[int, slice]]:
        """The centre types that occur, and their ranges of centres."""
        return [(t, block) for t, block in enumerate(self.centre_blocks) if block.stop > block.start]


AnyTranspose = Union["MomentTranspose", "PlainMomentTranspose", CountTranspose, PlainCountTranspose]


def build_moments(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, view: View, device: torch.device
) -> tuple[Moments, AnyTranspose]:
    """Compute the moments of a micro-batch."""
    transpose = _transpose(layout, cutoff, scale, basis, view, device)
    values = transpose.moments(view.dtype)
    if not view.switched:
        _add_empty_slots(values, layout, cutoff, scale, basis, view)
    if cutoff.exclude and not view.angular:
        _add_excluded_slots(values, layout, scale, basis)
    nodes = torch.as_tensor(basis.radial(basis.nodes), device=device)
    node_radial = (nodes - scale.mean[:, None]) / scale.std_radial[:, None]
    return Moments(view, values, basis, node_radial, layout.centre_blocks, layout.columns), transpose


def _transpose(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, view: View, device: torch.device
) -> AnyTranspose:
    if device.type == "cpu" and _kernels() is not None:
        pair, cell = compiled_columns(layout, cutoff, scale, basis, view.dtype)
        if view.switched:
            pair = switched_columns(torch.from_numpy(pair), cutoff).numpy()
        return (MomentTranspose if view.angular else CountTranspose)(layout, basis.size, pair, cell)
    pair_tensor, cell_tensor = pair_columns(layout, cutoff, scale, basis, device)
    if view.switched:
        pair_tensor = switched_columns(pair_tensor, cutoff)
    plain = PlainMomentTranspose if view.angular else PlainCountTranspose
    return plain(layout, basis.size, pair_tensor.to(view.dtype), cell_tensor)


class MomentTranspose:
    """From rows to moments, from dE/d(moments) to forces, and the adjoint of that: compiled loops over pairs."""

    def __init__(self, layout: Layout, size: int, pair: NDArray, cell: NDArray) -> None:
        self._layout = layout
        self._pair, self._cell = pair, cell
        self._shape = (len(layout.atom), 4, layout.counts.shape[1] * size)
        dtype = self._pair.dtype
        self._pieces, self._slopes = PIECES.astype(dtype), SLOPES.astype(dtype)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] without empty slots."""
        result = torch.zeros(self._shape, dtype=dtype)
        layout, kernels = self._layout, _required_kernels()
        kernels.moments(self._pair, self._cell, layout.counts, layout.row_of_atom, self._pieces, result.numpy())
        return result

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        layout = self._layout
        force = torch.zeros(layout.n_frames * layout.n_atoms, 3, dtype=torch.float64)
        virial = torch.zeros(layout.n_frames, 3, 3, dtype=torch.float64)
        _required_kernels().forces(gradient.contiguous().numpy(), *self._arguments(), force.numpy(), virial.numpy())
        return force.view(layout.n_frames, layout.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] what `forces` turns cotangents of forces and virials into."""
        result = torch.zeros(self._shape, dtype=dtype)
        force, virial = force_bar.reshape(-1, 3).contiguous(), virial_bar.contiguous()
        _required_kernels().adjoint(force.numpy(), virial.numpy(), *self._arguments(), result.numpy())
        return result

    def _arguments(self) -> tuple[NDArray | int, ...]:
        layout = self._layout
        return (
            self._pair,
            self._cell,
            layout.neighbour,
            layout.counts,
            layout.row_of_atom,
            self._pieces,
            self._slopes,
            layout.n_atoms,
        )


class PlainMomentTranspose:
    """The same three maps in plain tensor operations, for any device."""

    def __init__(self, layout: Layout, size: int, pair: Tensor, cell: Tensor) -> None:
        self._layout = layout
        device = pair.device
        self._shape = (len(layout.atom), 4, layout.counts.shape[1] * size)
        self._offset, self._radial, self._angular, self._radial_slope = pair[:, :4].unbind(1)
        self._turn, self._over_r, self._position_slope, self._distance = pair[:, 4:8].unbind(1)
        self._unit = pair[:, 8:]
        self._centre = torch.from_numpy(layout.pair_centre()).to(device)
        self._neighbour = torch.from_numpy(np.ascontiguousarray(layout.neighbour)).to(device)
        self._frame = torch.from_numpy(layout.pair_frame()).to(device)
        column = torch.from_numpy(layout.pair_column() * size).to(device) + cell
        row = torch.from_numpy(layout.pair_row()).to(device) * 4
        components = torch.arange(4, device=device)[None, :, None]
        splines = torch.arange(TOUCHED, device=device)
        self._index = (row[:, None, None] + components) * self._shape[2] + column[:, None, None] + splines

    @cached_property
    def _value(self) -> Tensor:
        return self._evaluate(PIECES)

    @cached_property
    def _slope(self) -> Tensor:
        return self._evaluate(SLOPES)

    @cached_property
    def _row(self) -> Tensor:
        return torch.cat([self._radial.unsqueeze(1), self._angular.unsqueeze(1) * self._unit], dim=1)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] without empty slots."""
        return self._scatter(self._row[:, :, None] * self._value[:, None, :], dtype)

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        layout = self._layout
        g = gradient.reshape(-1)[self._index]
        h, e = (g * self._value[:, None]).sum(-1), (g * self._slope[:, None]).sum(-1)
        stretch = (
            self._radial_slope * h[:, 0]
            + self._position_slope * (self._row * e).sum(1)
            + self._turn * (self._unit * h[:, 1:]).sum(1)
        )
        pair = (stretch[:, None] * self._unit + self._over_r[:, None] * h[:, 1:]).to(torch.float64)
        force = torch.zeros(layout.n_frames * layout.n_atoms, 3, dtype=torch.float64, device=pair.device)
        force.index_add_(0, self._centre, pair).index_add_(0, self._neighbour, pair, alpha=-1.0)
        outer = pair[:, :, None] * (self._unit * self._distance[:, None])[:, None, :]
        virial = torch.zeros(layout.n_frames, 3, 3, dtype=torch.float64, device=pair.device)
        virial.index_add_(0, self._frame, outer.to(torch.float64), alpha=-1.0)
        return force.view(layout.n_frames, layout.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] what `forces` turns cotangents of forces and virials into."""
        flat = force_bar.reshape(-1, 3)
        vector = (self._unit * self._distance[:, None]).to(torch.float64)
        bar = flat[self._centre] - flat[self._neighbour]
        bar = (bar - torch.einsum("pab,pb->pa", virial_bar[self._frame], vector)).to(self._unit.dtype)
        along = (self._unit * bar).sum(1)
        angular = (self._turn * along)[:, None] * self._unit + self._over_r[:, None] * bar
        h = torch.cat([(self._radial_slope * along).unsqueeze(1), angular], dim=1)
        e = (self._position_slope * along)[:, None] * self._row
        return self._scatter(h[:, :, None] * self._value[:, None, :] + e[:, :, None] * self._slope[:, None, :], dtype)

    def _evaluate(self, pieces: NDArray) -> Tensor:
        table = torch.as_tensor(pieces, dtype=self._offset.dtype, device=self._offset.device)
        powers = self._offset[:, None] ** torch.arange(len(pieces), device=self._offset.device)
        return powers @ table

    def _scatter(self, parts: Tensor, dtype: torch.dtype) -> Tensor:
        result = torch.zeros(self._shape, dtype=dtype, device=parts.device)
        result.view(-1).index_add_(0, self._index.reshape(-1), parts.reshape(-1).to(dtype))
        return result


def compiled_columns(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, dtype: torch.dtype
) -> tuple[NDArray, NDArray[np.int32]]:
    """The same as `pair_columns` by one compiled loop; computed in float64, kept in the precision of the features."""
    kernels = _required_kernels()
    pair = torch.empty(len(layout.vector), kernels.N_COLUMNS, dtype=dtype).numpy()
    cell = np.empty(len(layout.vector), dtype=np.int32)
    kernels.columns(
        np.ascontiguousarray(layout.vector, dtype=np.float64),
        layout.counts,
        layout.atom_type(),
        scale.mean.numpy(),
        1.0 / scale.std_radial.numpy(),
        1.0 / scale.std_angular.numpy(),
        float(cutoff.rcut_smth),
        float(cutoff.rcut),
        float(cutoff.protection),
        S0,
        basis.per_unit,
        basis.intervals,
        pair,
        cell,
    )
    return pair, cell


def pair_columns(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The columns that `kernels` describes, in float64, and the interval of each pair."""
    vector = torch.from_numpy(np.ascontiguousarray(layout.vector)).to(device, torch.float64)
    distance = torch.linalg.vector_norm(vector, dim=1)
    terms = radial_terms(distance, cutoff)
    pair_type = torch.from_numpy(layout.centre_type[layout.pair_row()]).to(device)
    inverse_radial, inverse_angular = 1.0 / scale.std_radial[pair_type], 1.0 / scale.std_angular[pair_type]
    stretched = terms.radial / S0
    position = torch.asinh(stretched) * basis.per_unit
    position_slope = terms.radial_slope * torch.rsqrt(1.0 + stretched**2) * (basis.per_unit / S0)
    cell = position.to(torch.int64).clamp_(max=basis.intervals - 1)
    pair = torch.stack(
        [
            position - cell,
            (terms.radial - scale.mean[pair_type]) * inverse_radial,
            terms.angular * inverse_angular,
            terms.radial_slope * inverse_radial,
            (terms.angular_slope - terms.angular_over_r) * inverse_angular,
            terms.angular_over_r * inverse_angular,
            position_slope,
            distance,
            *(vector / distance.unsqueeze(1)).unbind(1),
        ],
        dim=1,
    )
    return pair, cell


def switched_columns(pair: Tensor, cutoff: Cutoff) -> Tensor:
    """The columns of rows multiplied by the switching function."""
    offset, radial, angular, radial_slope, turn, over_r, position_slope, distance = pair[:, :8].unbind(1)
    weight, slope = (term.to(pair.dtype) for term in switch(distance.to(torch.float64), cutoff.rcut_smth, cutoff.rcut))
    columns = (
        offset,
        weight * radial,
        weight * angular,
        weight * radial_slope + slope * radial,
        weight * turn + slope * angular,
        weight * over_r,
        position_slope,
        distance,
    )
    return torch.cat([torch.stack(columns, dim=1), pair[:, 8:]], dim=1)


def _add_empty_slots(
    values: Tensor, layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, view: View
) -> None:
    """Empty slots lie at s = 0 and have a radial component only: minus mean over spread. In a sum over neighbours
    they count as one."""
    if view.angular and not scale.mean.any():
        return
    n_empty = torch.from_numpy(layout.empty_slots(cutoff)).to(values)
    row = scale.empty[torch.from_numpy(np.ascontiguousarray(layout.centre_type)).to(values.device)].to(values)
    at_zero = torch.as_tensor(PIECES[0]).to(values)
    for t in range(n_empty.shape[1]):
        start = t * basis.size
        weight = n_empty[:, t] * row if view.angular else n_empty[:, t]
        values[:, 0, start : start + TOUCHED] += weight[:, None] * at_zero


def _add_excluded_slots(values: Tensor, layout: Layout, scale: RowScale, basis: SplineBasis) -> None:
    """In a sum over neighbours, one of an excluded type counts as if its normalised radial component were zero."""
    at_mean = torch.as_tensor(basis.values(basis.position(scale.mean.cpu().numpy()))).to(values)
    own = at_mean[torch.from_numpy(np.ascontiguousarray(layout.centre_type)).to(values.device)]
    number = torch.from_numpy(layout.excluded_slots()).to(values)
    values[:, 0] += (number[:, :, None] * own[:, None, :]).flatten(1)


def _kernels() -> ModuleType | None:
    """The compiled loops, or None where numba is missing."""
    try:
        from lockstep.geometry import kernels
    except ImportError:
        return None
    return kernels


def _required_kernels() -> ModuleType:
    kernels = _kernels()
    assert kernels is not None
    return kernels
