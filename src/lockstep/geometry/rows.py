"""Environment rows in padded slots: what the exact embedding net sees, in plain tensor operations on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.layout import Layout, ranges
from lockstep.geometry.pairs import slot_numbers
from lockstep.geometry.radial import Cutoff, radial_terms
from lockstep.geometry.scale import RowScale


@dataclass(frozen=True)
class Rows:
    """Environment rows, centres grouped by type.

    The slots of one neighbour type are a block of columns. Its last column stands for all empty slots of the
    centre at once: its rows are weighted by how many there are.

    Attributes:
        radial: [C, S] normalised radial component of each slot, the embedding net's input.
        rows: [C, S, 4] normalised rows times the slot's weight (1; 0 where unused; the count where empty).
        centre_blocks: for each centre type, the range of rows.
        slot_blocks: for each neighbour type, the range of columns.
    """

    radial: Tensor
    rows: Tensor
    centre_blocks: tuple[slice, ...]
    slot_blocks: tuple[slice, ...]


@dataclass(frozen=True)
class RowTranspose:
    """From dE/d(rows) to forces and virials, and the adjoint of that map.

    Attributes:
        slot: [P] where each pair lies in the flattened slots.
        centre, neighbour: [P] numbers of the two atoms of each pair.
        unit, vector: [P, 3] direction and vector from the centre to the neighbour.
        radial_slope, angular_slope, angular_over_r: [P] slopes of the normalised row's components.
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
    radial_slope: Tensor
    angular_slope: Tensor
    angular_over_r: Tensor

    def forces(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Forces [B, n, 3] and virials [B, 3, 3] of dE/d(rows) [C, S, 4]."""
        gradient = gradient.reshape(-1, 4).index_select(0, self.slot).to(torch.float64)
        along = (self.unit * gradient[:, 1:]).sum(dim=1)
        stretch = self.radial_slope * gradient[:, 0] + (self.angular_slope - self.angular_over_r) * along
        pair = torch.addcmul(stretch.unsqueeze(1) * self.unit, self.angular_over_r.unsqueeze(1), gradient[:, 1:])
        forces = torch.zeros(self.n_frames * self.n_atoms, 3, dtype=pair.dtype, device=pair.device)
        forces.index_add_(0, self.centre, pair)
        forces.index_add_(0, self.neighbour, pair, alpha=-1.0)
        virial = torch.stack([-(pair[p].T @ self.vector[p]) for p in self.frame_pairs])
        return forces.view(self.n_frames, self.n_atoms, 3), virial

    def adjoint(self, force_bar: Tensor, virial_bar: Tensor, dtype: torch.dtype) -> Tensor:
        """[C, S, 4] what `forces` turns cotangents of forces and virials into."""
        flat = force_bar.reshape(-1, 3)
        bar = flat.index_select(0, self.centre) - flat.index_select(0, self.neighbour)
        bar -= torch.cat([self.vector[p] @ v.T for p, v in zip(self.frame_pairs, virial_bar, strict=True)])
        along = (self.unit * bar).sum(dim=1)
        angular = torch.addcmul(
            ((self.angular_slope - self.angular_over_r) * along).unsqueeze(1) * self.unit,
            self.angular_over_r.unsqueeze(1),
            bar,
        )
        pair_bar = torch.cat([(self.radial_slope * along).unsqueeze(1), angular], dim=1).to(dtype)
        result = torch.zeros(self.shape, dtype=dtype, device=pair_bar.device)
        result.view(-1, 4)[self.slot] = pair_bar
        return result


def build_rows(
    layout: Layout, cutoff: Cutoff, scale: RowScale, dtype: torch.dtype, device: torch.device
) -> tuple[Rows, RowTranspose]:
    """Lay the environment rows of a micro-batch out in slots."""

    def tensor(array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    vector = tensor(layout.vector).to(torch.float64)
    distance = torch.linalg.vector_norm(vector, dim=1)
    unit = vector / distance.unsqueeze(1)
    terms = radial_terms(distance, cutoff)
    pair_type = tensor(layout.centre_type[layout.pair_row()])
    std_radial, std_angular = scale.std_radial[pair_type], scale.std_angular[pair_type]
    normalised = (terms.radial - scale.mean[pair_type]) / std_radial
    row = torch.cat([normalised.unsqueeze(1), (terms.angular / std_angular).unsqueeze(1) * unit], dim=1)

    widths = layout.counts.max(axis=0) + 1
    slot_blocks = ranges(widths)
    slot = tensor(_pair_slots(layout, slot_blocks))
    empty = scale.empty[tensor(layout.centre_type)]
    shape = (len(layout.atom), slot_blocks[-1].stop, 4)
    radial = empty.unsqueeze(1).repeat(1, shape[1])
    rows = torch.zeros(shape, dtype=torch.float64, device=device)
    n_empty = np.asarray(cutoff.sel) - layout.occupied[layout.atom]
    for block, count in zip(slot_blocks, n_empty.T, strict=True):
        rows[:, block.stop - 1, 0] = empty * tensor(count)
    radial.view(-1)[slot] = row[:, 0]
    rows.view(-1, 4)[slot] = row
    transpose = RowTranspose(
        n_frames=layout.n_frames,
        n_atoms=layout.n_atoms,
        shape=shape,
        slot=slot,
        centre=tensor(layout.pair_centre()),
        neighbour=tensor(layout.neighbour),
        unit=unit,
        vector=vector,
        frame_pairs=layout.frame_pairs,
        radial_slope=terms.radial_slope / std_radial,
        angular_slope=terms.angular_slope / std_angular,
        angular_over_r=terms.angular_over_r / std_angular,
    )
    return Rows(radial.to(dtype), rows.to(dtype), layout.centre_blocks, slot_blocks), transpose


def _pair_slots(layout: Layout, slot_blocks: tuple[slice, ...]) -> NDArray[np.int64]:
    """[P] the place of each pair in the flattened slots."""
    starts = np.array([block.start for block in slot_blocks])
    first = layout.row_of_atom[:, None] * slot_blocks[-1].stop + starts
    return np.repeat(first.ravel(), layout.counts.ravel()) + slot_numbers(layout.counts)
