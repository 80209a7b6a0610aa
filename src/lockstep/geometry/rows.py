"""Environment rows in padded slots: what the exact embedding net sees, in plain tensor operations on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.config.cutoff import Cutoff
from lockstep.device import upload
from lockstep.geometry.layout import Layout, ranges
from lockstep.geometry.pairs import slot_numbers
from lockstep.geometry.radial import radial_terms, switch
from lockstep.geometry.scale import RowScale
from lockstep.geometry.view import View


@dataclass(frozen=True)
class Rows:
    """Environment rows, centres grouped by type.

    The slots of one neighbour type are a block of columns. Its last column stands for all empty slots of the
    centre at once: its rows are weighted by how many there are.

    Attributes:
        view: what the rows are, and which neighbour types they tell apart.
        radial: [C, S] normalised radial component of each slot, the embedding net's input.
        rows: [C, S, components] normalised rows times the slot's weight (1; 0 where unused; the count where empty).
        centre_blocks: for each centre type, the range of rows.
        columns: the neighbour types that are told apart; empty where none are.
        slot_blocks: for each of them, the range of slots.
    """

    view: View
    radial: Tensor
    rows: Tensor
    centre_blocks: tuple[slice, ...]
    columns: tuple[int, ...]
    slot_blocks: tuple[slice, ...]


@dataclass(frozen=True)
class RowTranspose:
    """From dE/d(rows) to forces and virials, and the adjoint of that map.

    A gradient has a number for each component of the rows, and one more for the embedding net's input wherever that
    is not the rows' first component (`net_slope`).

    Attributes:
        slot: [P] where each pair lies in the flattened slots.
        centre, neighbour: [P] numbers of the two atoms of each pair.
        unit, vector: [P, 3] direction and vector from the centre to the neighbour.
        radial_slope, angular_slope, angular_over_r: [P] slopes of the row's components; None for rows of ones.
        net_slope: [P] slope of the embedding net's input, where it has a number of its own.
    """

    n_frames: int
    n_atoms: int
    shape: tuple[int, int, int]
    slot: Tensor
    centre: Tensor
    neighbour: Tensor
    unit: Tensor
    vector: Tensor
    frame_pairs: tuple[slice, ...]
    slopes: tuple[Tensor, Tensor, Tensor] | None
    net_slope: Tensor | None

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(rows) [C, S, components]."""
        gradient = gradient.reshape(-1, self.shape[2]).index_select(0, self.slot).to(torch.float64)
        pair = self._pair_forces(gradient)
        forces = torch.zeros(self.n_frames * self.n_atoms, 3, dtype=pair.dtype, device=pair.device)
        forces.index_add_(0, self.centre, pair)
        forces.index_add_(0, self.neighbour, pair, alpha=-1.0)
        virial = torch.stack([-(pair[p].T @ self.vector[p]) for p in self.frame_pairs])
        return forces.view(self.n_frames, self.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, S, components] what `forces` turns cotangents of forces and virials into."""
        flat = force_bar.reshape(-1, 3)
        bar = flat.index_select(0, self.centre) - flat.index_select(0, self.neighbour)
        bar -= torch.cat([self.vector[p] @ v.T for p, v in zip(self.frame_pairs, virial_bar, strict=True)])
        along = (self.unit * bar).sum(dim=1)
        parts = []
        if self.slopes is not None:
            radial_slope, angular_slope, over_r = self.slopes
            turned = ((angular_slope - over_r) * along).unsqueeze(1) * self.unit
            parts += [(radial_slope * along).unsqueeze(1), torch.addcmul(turned, over_r.unsqueeze(1), bar)]
        if self.net_slope is not None:
            parts.append((self.net_slope * along).unsqueeze(1))
        pair_bar = torch.cat(parts, dim=1).to(dtype)
        result = torch.zeros(self.shape, dtype=dtype, device=pair_bar.device)
        result.view(-1, self.shape[2])[self.slot] = pair_bar
        return result

    def _pair_forces(self, gradient: Tensor) -> Tensor:
        """[P, 3] the derivative of the energy by each pair's vector."""
        if self.slopes is None:
            assert self.net_slope is not None
            return (self.net_slope * gradient[:, 0]).unsqueeze(1) * self.unit
        radial_slope, angular_slope, over_r = self.slopes
        along = (self.unit * gradient[:, 1:4]).sum(dim=1)
        stretch = radial_slope * gradient[:, 0] + (angular_slope - over_r) * along
        if self.net_slope is not None:
            stretch = stretch + self.net_slope * gradient[:, 4]
        return torch.addcmul(stretch.unsqueeze(1) * self.unit, over_r.unsqueeze(1), gradient[:, 1:4])


def build_rows(
    layout: Layout, cutoff: Cutoff, scale: RowScale, view: View, device: torch.device
) -> tuple[Rows, RowTranspose]:
    """Lay the environment rows of a micro-batch out in slots."""
    row = _PairRows(layout, cutoff, scale, view, device)
    standing = _standing(layout, cutoff, scale, view)
    widths = layout.counts.max(axis=0) + len(standing)
    slot_blocks = ranges(widths)
    slot = upload(_pair_slots(layout, slot_blocks), device)
    shape = (len(layout.atom), slot_blocks[-1].stop)
    empty = scale.empty[upload(layout.centre_type, device)]
    radial = empty.unsqueeze(1).repeat(1, shape[1])
    rows = torch.zeros(*shape, view.components, dtype=torch.float64, device=device)
    for place, (counts, value) in enumerate(standing, start=1):
        for block, count in zip(slot_blocks, counts.T, strict=True):
            weight = upload(count, device)
            radial[:, block.stop - place] = value
            rows[:, block.stop - place, 0] = value * weight if view.angular else weight
    radial.view(-1)[slot] = row.radial
    rows.view(-1, view.components)[slot] = row.row
    transpose = RowTranspose(
        n_frames=layout.n_frames,
        n_atoms=layout.n_atoms,
        shape=(*shape, row.gradient_components),
        slot=slot,
        centre=upload(layout.pair_centre(), device),
        neighbour=upload(layout.neighbour, device),
        unit=row.unit,
        vector=row.vector,
        frame_pairs=layout.frame_pairs,
        slopes=row.slopes,
        net_slope=row.net_slope,
    )
    features = Rows(view, radial.to(view.dtype), rows.to(view.dtype), layout.centre_blocks, layout.columns, slot_blocks)
    return features, transpose


class _PairRows:
    """The rows of all pairs, and their slopes."""

    slopes: tuple[Tensor, Tensor, Tensor] | None
    net_slope: Tensor | None

    def __init__(self, layout: Layout, cutoff: Cutoff, scale: RowScale, view: View, device: torch.device) -> None:
        self.vector = upload(layout.vector, device).to(torch.float64)
        distance = torch.linalg.vector_norm(self.vector, dim=1)
        self.unit = self.vector / distance.unsqueeze(1)
        terms = radial_terms(distance, cutoff)
        pair_type = upload(layout.centre_type[layout.pair_row()], device)
        std_radial, std_angular = scale.std_radial[pair_type], scale.std_angular[pair_type]
        self.radial = (terms.radial - scale.mean[pair_type]) / std_radial
        radial_slope = terms.radial_slope / std_radial
        self.slopes, self.net_slope = None, None
        if not view.angular:
            self.row, self.net_slope = torch.ones_like(distance).unsqueeze(1), radial_slope
            return
        angular, over_r = terms.angular / std_angular, terms.angular_over_r / std_angular
        angular_slope = terms.angular_slope / std_angular
        self.row = torch.cat([self.radial.unsqueeze(1), angular.unsqueeze(1) * self.unit], dim=1)
        self.slopes = (radial_slope, angular_slope, over_r)
        if view.switched:
            weight, weight_slope = switch(distance, cutoff.rcut_smth, cutoff.rcut)
            self.row, self.net_slope = self.row * weight.unsqueeze(1), radial_slope
            self.slopes = (
                weight_slope * self.radial + weight * radial_slope,
                weight_slope * angular + weight * angular_slope,
                weight * over_r,
            )

    @property
    def gradient_components(self) -> int:
        return (4 if self.slopes is not None else 0) + (1 if self.net_slope is not None else 0)


def _standing(layout: Layout, cutoff: Cutoff, scale: RowScale, view: View) -> list[tuple[NDArray, Tensor | float]]:
    """What a centre has beside pairs: how many for each neighbour type, and the embedding net's input there."""
    empty = scale.empty[upload(layout.centre_type, scale.mean.device)]
    none = np.zeros((len(layout.atom), layout.counts.shape[1]))
    standing: list[tuple[NDArray, Tensor | float]] = [(none if view.switched else layout.empty_slots(cutoff), empty)]
    if cutoff.exclude and not view.angular:
        # A row of zeros is nothing in a sum over rows; in a sum over neighbours the net still has its value at zero.
        standing.append((layout.excluded_slots(), 0.0))
    return standing


def _pair_slots(layout: Layout, slot_blocks: tuple[slice, ...]) -> NDArray[np.int64]:
    """[P] the place of each pair in the flattened slots."""
    starts = np.array([block.start for block in slot_blocks])
    first = layout.row_of_atom[:, None] * slot_blocks[-1].stop + starts
    return np.repeat(first.ravel(), layout.counts.ravel()) + slot_numbers(layout.counts)
