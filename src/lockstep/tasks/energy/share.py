"""One frame over several ranks: which atoms this rank has, and the sum of all ranks' shares.

Every rank has all coordinates and owns a block of space, or of few atoms those of some types. They are its centres: it
computes their energies, and what they mean for the forces on all atoms and for the virial. The sum over the ranks is
the prediction of the whole frame, on which every rank computes the same loss; so the way back needs no message, and the
weights' gradients of the ranks add up to those of the frame.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.data import MicroBatch
from lockstep.geometry import PairCache
from lockstep.geometry.blocks import divide, divide_by_type
from lockstep.model import Prediction
from lockstep.parallel.group import Group


def own_atoms(batch: MicroBatch, group: Group, cache: PairCache, nets_by_type: bool = True) -> NDArray[np.bool_] | None:
    """[B, n] the atoms that are this rank's centres; None where no other rank shares the micro-batch."""
    if group.size == 1:
        return None

    def own(b: int) -> NDArray[np.bool_]:
        cell = None if batch.cell is None else batch.cell[b]
        owner = divide_by_type(batch.types[b], group.size, len(batch.frames)) if nets_by_type else None
        return (divide(batch.coord[b], cell, batch.types[b], group.size) if owner is None else owner) == group.rank

    # With padding, a frame has as many atoms as the largest of its batch.
    shape = batch.types.shape
    return np.array([cache.get((int(frame), shape, "own"), partial(own, b)) for b, frame in enumerate(batch.frames)])


def sum_of_shares(share: Prediction, group: Group) -> Prediction:
    """The prediction of whole frames from the shares of the ranks in `group`, in one message."""
    if group.size == 1:
        return share
    parts = (share.atom_energy, share.force, share.virial)
    whole = _Sum.apply(torch.cat([part.reshape(-1) for part in parts]), group)
    atom_energy, force, virial = (
        piece.view_as(part) for piece, part in zip(whole.split([part.numel() for part in parts]), parts, strict=True)
    )
    return Prediction(atom_energy.sum(dim=1), atom_energy, force, virial)


class _Sum(torch.autograd.Function):
    """A sum over ranks that all compute the same from it: each rank's cotangent is that of the sum itself."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, group: Group) -> Tensor:
        whole = share.detach().clone()
        group.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Tensor, None]:
        return bars[0], None
