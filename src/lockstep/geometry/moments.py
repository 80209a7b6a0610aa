"""Moments of environment rows over a spline basis: all that a network needs of a centre's neighbours.

With an embedding net N(s) = sum_k b_k(s) C_k, the sum over slots of row^T N(s) is A C, where A = sum over slots of
row^T b(s) has no weights in it. A is what this module computes, and the way from dE/dA back to forces.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.cutoff import Cutoff
from lockstep.device import chosen, upload
from lockstep.geometry.basis import S0, TOUCHED, SplineBasis
from lockstep.geometry.constants import all_splines, basis_constants, spline_tables
from lockstep.geometry.counts import CountTranspose
from lockstep.geometry.layout import Layout, Share
from lockstep.geometry.loops import PairLoops
from lockstep.geometry.plain import PlainCountTranspose, PlainMomentTranspose
from lockstep.geometry.radial import radial_terms, switch
from lockstep.geometry.scale import RowScale
from lockstep.geometry.view import View
from lockstep.team import in_shares


@dataclass(frozen=True)
class Moments:
    """Moments of the rows, centres grouped by type.

    Attributes:
        view: what the rows are, and which neighbour types they tell apart.
        values: [C, components, columns * size] a block of columns for each neighbour type that is told apart.
        basis: the splines.
        node_radial: [types that occur, nodes] for each centre type the embedding net's input at the basis' nodes.
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
        return occurring(self.centre_blocks)

    @property
    def fit(self) -> Tensor:
        """[size, nodes] from a net's values at the nodes to its spline coefficients."""
        return basis_constants(self.basis, self.values.device).fit


def occurring(centre_blocks: tuple[slice, ...]) -> list[tuple[int, slice]]:
    """The centre types that have centres."""
    return [(t, block) for t, block in enumerate(centre_blocks) if block.stop > block.start]


AnyTranspose = Union["MomentTranspose", PlainMomentTranspose, CountTranspose, PlainCountTranspose]


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
    types = [t for t, _ in occurring(layout.centre_blocks)]
    mean, std = chosen(scale.mean, types), chosen(scale.std_radial, types)
    node_radial = (basis_constants(basis, device).radial - mean[:, None]) / std[:, None]
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


class MomentTranspose(PairLoops):
    """From rows to moments, from dE/d(moments) to forces, and the adjoint of that: compiled loops over pairs."""

    def __init__(self, layout: Layout, size: int, pair: NDArray, cell: NDArray) -> None:
        super().__init__(layout, pair, cell)
        self._shape = (len(layout.atom), 4, layout.counts.shape[1] * size)

    def moments(self, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] without empty slots."""
        result = torch.zeros(self._shape, dtype=dtype)
        kernels, values = _required_kernels(), result.numpy()

        def run(share: Share) -> None:
            pair, cell, _, counts, rows = self._own(share)
            kernels.moments(pair, cell, counts, rows, self._pieces, values)

        self._in_shares(run)
        return result

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(moments)."""
        kernels, values = _required_kernels(), gradient.contiguous().numpy()
        return self._summed(lambda share, *sums: kernels.forces(values, *self._arguments(share), *sums))

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, 4, columns * size] what `forces` turns cotangents of forces and virials into."""
        result = torch.zeros(self._shape, dtype=dtype)
        force, virial = force_bar.reshape(-1, 3).contiguous().numpy(), virial_bar.contiguous().numpy()
        kernels, values = _required_kernels(), result.numpy()
        self._in_shares(lambda share: kernels.adjoint(force, virial, *self._arguments(share), values))
        return result

    def _arguments(self, share: Share) -> tuple[NDArray | int, ...]:
        return *self._own(share), self._pieces, self._slopes, self._layout.n_atoms, share.atoms.start


def compiled_columns(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, dtype: torch.dtype
) -> tuple[NDArray, NDArray[np.int32]]:
    """The same as `pair_columns` by one compiled loop; computed in float64, kept in the precision of the features."""
    kernels = _required_kernels()
    pair = torch.empty(len(layout.vector), kernels.N_COLUMNS, dtype=dtype).numpy()
    cell = np.empty(len(layout.vector), dtype=np.int32)
    vector, types = np.ascontiguousarray(layout.vector, dtype=np.float64), layout.atom_type()
    scales = scale.mean.numpy(), 1.0 / scale.std_radial.numpy(), 1.0 / scale.std_angular.numpy()
    reach = float(cutoff.rcut_smth), float(cutoff.rcut), float(cutoff.protection)
    splines = S0, basis.per_unit, basis.intervals

    def run(share: Share) -> None:
        atoms, own = share.atoms, share.pairs
        kernels.columns(
            vector[own], layout.counts[atoms], types[atoms], *scales, *reach, *splines, pair[own], cell[own]
        )

    in_shares(run, layout.shares())
    return pair, cell


def pair_columns(
    layout: Layout, cutoff: Cutoff, scale: RowScale, basis: SplineBasis, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The columns that `kernels` describes, in float64, and the interval of each pair."""
    vector = upload(layout.vector, device).to(torch.float64)
    distance = torch.linalg.vector_norm(vector, dim=1)
    terms = radial_terms(distance, cutoff)
    pair_type = upload(layout.centre_type[layout.pair_row()], device)
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
    # Another device is not asked whether there is anything to add: that would take longer than adding zeros.
    if view.angular and values.device.type == "cpu" and not scale.mean.any():
        return
    n_empty = upload(layout.empty_slots(cutoff), values.device).to(values.dtype)
    row = scale.empty[upload(layout.centre_type, values.device)].to(values.dtype)
    at_zero = spline_tables(values.dtype, values.device)[0][0]
    weight = n_empty * row[:, None] if view.angular else n_empty
    first = values[:, 0].unflatten(1, (weight.shape[1], basis.size))[..., :TOUCHED]
    first += weight[:, :, None] * at_zero


def _add_excluded_slots(values: Tensor, layout: Layout, scale: RowScale, basis: SplineBasis) -> None:
    """In a sum over neighbours, one of an excluded type counts as if its normalised radial component were zero."""
    own = all_splines(basis, scale.mean).to(values.dtype)[upload(layout.centre_type, values.device)]
    number = upload(layout.excluded_slots(), values.device).to(values.dtype)
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
