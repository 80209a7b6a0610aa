"""Neighbour lists for DeePMD-kit's models, found once per frame instead of at every step.

Training data do not move, and a list depends on coordinates alone. DeePMD-kit's models build it in every forward pass,
by one function; during a step of this program that function answers from what was found before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Extended = tuple[Tensor, Tensor, Tensor, Tensor]
"""Coordinates [B, all, 3] and types [B, all] of atoms and their images, whose image each is [B, all], neighbours."""


_FUNCTION = "extend_input_and_build_neighbor_list"


@dataclass(frozen=True)
class FrameNeighbours:
    """The list of one frame.

    Attributes:
        mapping: [all] which atom each atom or image is one of.
        shift: [all, 3] how far it lies from that atom.
        neighbours: [atoms, slots] positions in `mapping`, -1 for empty slots.
    """

    mapping: Tensor
    shift: Tensor
    neighbours: Tensor

    @property
    def nbytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in (self.mapping, self.shift, self.neighbours))


def split(extended: Extended, coord: Tensor) -> list[FrameNeighbours]:
    """The lists of the frames of a batch, found for coordinates [B, atoms, 3]."""
    places, _, mapping, neighbours = extended
    home = torch.gather(coord.view(mapping.shape[0], -1, 3), 1, mapping[..., None].expand(-1, -1, 3))
    shift = places.view(home.shape) - home
    return [FrameNeighbours(mapping[i].clone(), shift[i].clone(), neighbours[i].clone()) for i in range(len(mapping))]


def join(frames: list[FrameNeighbours], coord: Tensor, types: Tensor) -> Extended:
    """The lists of some frames as those of a batch. Frames with fewer images get copies of an atom that nobody sees."""
    count = max(len(frame.mapping) for frame in frames)
    mapping = torch.stack([_padded(frame.mapping, count) for frame in frames])
    shift = torch.stack([_padded(frame.shift, count) for frame in frames])
    coord = coord.view(len(frames), -1, 3)
    places = torch.gather(coord, 1, mapping[..., None].expand(-1, -1, 3)) + shift
    kinds = torch.gather(types, 1, mapping)
    return places, kinds, mapping, torch.stack([frame.neighbours for frame in frames])


def _padded(values: Tensor, count: int) -> Tensor:
    missing = count - len(values)
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values


class KnownLists:
    """Answers DeePMD-kit's models when they ask for a neighbour list: with the one known, or by finding and keeping it.

    Args:
        budget_bytes: memory for lists. What is in it stays, what does not fit is found again: frames come in shuffled
            passes, so each is as likely as any other to be next.
    """

    def __init__(self, budget_bytes: int) -> None:
        # The package has a function of the same name, so the module is not to be had by `from`.
        self._module = importlib.import_module("deepmd.pt.model.model.make_model")
        self._budget, self._nbytes = budget_bytes, 0
        self._known: dict[Hashable, FrameNeighbours] = {}
        self._find: Callable[..., Extended] = getattr(self._module, _FUNCTION)
        self._keys: Sequence[Hashable] = []
        self.found = 0

    @contextmanager
    def of(self, keys: Sequence[Hashable]) -> Iterator[None]:
        """Within, a model that asks is asking about the frames with these keys."""
        self._keys = keys
        setattr(self._module, _FUNCTION, self._answer)
        try:
            yield
        finally:
            setattr(self._module, _FUNCTION, self._find)

    def _answer(self, coord: Tensor, atype: Tensor, rcut: float, sel: Any, **options: Any) -> Extended:
        places = [(key, atype.shape[1], rcut, tuple(sel)) for key in self._keys]
        known = [self._known.get(place) for place in places]
        if len(known) == len(atype) and all(known):
            return join([each for each in known if each is not None], coord, atype)
        extended = self._find(coord, atype, rcut, sel, **options)
        self.found += len(atype)
        if len(places) == len(atype):
            for place, frame in zip(places, split(extended, coord.detach()), strict=True):
                self._keep(place, frame)
        return extended

    def _keep(self, place: Hashable, frame: FrameNeighbours) -> None:
        if place not in self._known and self._nbytes + frame.nbytes <= self._budget:
            self._known[place] = frame
            self._nbytes += frame.nbytes
