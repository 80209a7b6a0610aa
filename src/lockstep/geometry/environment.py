"""Environment rows of a micro-batch, laid out for the network, and what leads back from them to forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.geometry.pairs import Pairs, slot_numbers
from lockstep.geometry.radial import Cutoff, radial_terms
from lockstep.geometry.scale import RowScale


@dataclass(frozen=True)
class Features:
    """What the network sees of a micro-batch: environment rows in padded slots, centres grouped by type.

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
class Environment:
    """A micro-batch seen from its centres. All that depends on coordinates, and nothing that depends on weights.

    Attributes:
        n_frames, n_atoms: the batch's shape, padding atoms included.
        atom: [C] number of each centre among the batch's n_frames * n_atoms atoms, ordered by type.
        features: the network's view.
        slot: [P] where each pair lies in the flattened slots.
        centre, neighbour: [P] numbers of the two atoms of each pair.
        unit: [P, 3] direction from the centre to the neighbour.
        vector: [P, 3] from the centre to the neighbour in Angstrom.
        frame_pairs: for each frame, its range of pairs.
        radial_slope, angular_slope, angular_over_r: [P] slopes of the normalised row's components.
        dropped: neighbours that found no slot.
    """

    n_frames: int
    n_atoms: int
    atom: Tensor
    features: Features
    slot: Tensor
    centre: Tensor
    neighbour: Tensor
    unit: Tensor
    vector: Tensor
    frame_pairs: tuple[slice, ...]
    radial_slope: Tensor
    angular_slope: Tensor
    angular_over_r: Tensor
    dropped: int = 0


class EnvironmentBuilder:
    """Turns neighbour pairs into environment rows. Plain tensor operations, on any device."""

    def __init__(self, cutoff: Cutoff, scale: RowScale, device: torch.device | str = "cpu") -> None:
        self.cutoff = cutoff
        self.scale = scale.to(device)
        self.device = torch.device(device)

    def build(self, pairs: Sequence[Pairs], types: NDArray) -> Environment:
        """Build the environment of frames with the same number of atoms; `types` is [n_frames, n_atoms]."""
        n_frames, n_atoms = types.shape
        layout = _Layout.of(pairs, types, self.cutoff)
        vector = self._tensor(np.concatenate([p.vector for p in pairs]), torch.float64)
        distance = torch.linalg.vector_norm(vector, dim=1)
        unit = vector / distance.unsqueeze(1)
        terms = radial_terms(distance, self.cutoff)
        centre_type = self._tensor(layout.centre_type[layout.pair_row])
        std_radial, std_angular = self.scale.std_radial[centre_type], self.scale.std_angular[centre_type]
        row = torch.cat(
            [
                ((terms.radial - self.scale.mean[centre_type]) / std_radial).unsqueeze(1),
                (terms.angular / std_angular).unsqueeze(1) * unit,
            ],
            dim=1,
        )
        slot = self._tensor(layout.pair_slot)
        return Environment(
            n_frames=n_frames,
            n_atoms=n_atoms,
            atom=self._tensor(layout.atom),
            features=self._features(layout, slot, row),
            slot=slot,
            centre=self._tensor(layout.atom[layout.pair_row]),
            neighbour=self._tensor(layout.pair_neighbour),
            unit=unit,
            vector=vector,
            frame_pairs=layout.frame_pairs,
            radial_slope=terms.radial_slope / std_radial,
            angular_slope=terms.angular_slope / std_angular,
            angular_over_r=terms.angular_over_r / std_angular,
            dropped=sum(p.dropped for p in pairs),
        )

    def _features(self, layout: _Layout, slot: Tensor, row: Tensor) -> Features:
        n_centres, n_slots = len(layout.atom), layout.slot_blocks[-1].stop
        empty = self.scale.empty[self._tensor(layout.centre_type)]
        radial = empty.unsqueeze(1).repeat(1, n_slots)
        rows = torch.zeros(n_centres, n_slots, 4, dtype=torch.float64, device=self.device)
        for block, count in zip(layout.slot_blocks, layout.n_empty.T, strict=True):
            rows[:, block.stop - 1, 0] = empty * self._tensor(count)
        radial.view(-1)[slot] = row[:, 0]
        rows.view(-1, 4)[slot] = row
        return Features(radial, rows, layout.centre_blocks, layout.slot_blocks)

    def _tensor(self, array: NDArray, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, dtype, non_blocking=True)


@dataclass(frozen=True)
class _Layout:
    """Where centres and pairs go: centres in order of type, pairs in the slots of their type."""

    atom: NDArray
    centre_type: NDArray
    centre_blocks: tuple[slice, ...]
    slot_blocks: tuple[slice, ...]
    n_empty: NDArray
    pair_row: NDArray
    pair_slot: NDArray
    pair_neighbour: NDArray
    frame_pairs: tuple[slice, ...]

    @classmethod
    def of(cls, pairs: Sequence[Pairs], types: NDArray, cutoff: Cutoff) -> _Layout:
        flat_types = types.ravel()
        atom = np.argsort(flat_types, kind="stable")
        bounds = np.searchsorted(flat_types[atom], np.arange(cutoff.ntypes + 1))
        atom, bounds = atom[bounds[0] :], bounds - bounds[0]
        row_of_atom = np.zeros(len(flat_types), dtype=np.int64)
        row_of_atom[atom] = np.arange(len(atom))

        counts = np.concatenate([p.counts for p in pairs])
        widths = counts.max(axis=0) + 1
        ends = np.cumsum(widths)
        group_row = np.repeat(row_of_atom, cutoff.ntypes)
        group_start = np.tile(ends - widths, len(flat_types)) + group_row * ends[-1]
        sizes = counts.ravel()
        per_frame = np.array([len(p.neighbour) for p in pairs])
        first_atom = np.repeat(np.arange(len(pairs)) * types.shape[1], per_frame)
        return cls(
            atom=atom,
            centre_type=flat_types[atom],
            centre_blocks=_ranges(np.diff(bounds)),
            slot_blocks=_ranges(widths),
            n_empty=np.asarray(cutoff.sel) - np.concatenate([p.occupied for p in pairs])[atom],
            pair_row=np.repeat(group_row, sizes),
            pair_slot=np.repeat(group_start, sizes) + slot_numbers(counts),
            pair_neighbour=np.concatenate([p.neighbour for p in pairs]) + first_atom,
            frame_pairs=_ranges(per_frame),
        )


def _ranges(sizes: NDArray) -> tuple[slice, ...]:
    ends = np.cumsum(sizes)
    return tuple(slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True))
