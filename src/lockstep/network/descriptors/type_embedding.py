"""A few learned numbers for each atom type, so that one net can serve all types."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.config.elements import spin_orbitals


class TypeEmbedding(nn.Module):
    """One linear layer over what is known of a type: its number alone, or its electronic configuration.

    As in every other layer, the input is added to the output where the widths let it.

    Args:
        width: numbers for each type.
        electronic: start from the electronic configurations of the elements that the types are named after.
        bias: the layer has a bias.
    """

    known: Tensor

    def __init__(
        self,
        type_map: Sequence[str],
        width: int,
        *,
        electronic: bool,
        bias: bool,
        dtype: torch.dtype,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.register_buffer("known", _known(type_map, electronic).to(dtype), persistent=False)
        n_in = self.known.shape[1]
        weight = torch.empty(n_in, width, dtype=torch.float64).normal_(
            0.0, 1.0 / (n_in + width) ** 0.5, generator=generator
        )
        self.weight = nn.Parameter(weight.to(dtype))
        first = torch.empty(width, dtype=torch.float64).normal_(generator=generator) if bias else None
        self.bias = None if first is None else nn.Parameter(first.to(dtype))

    def forward(self) -> Tensor:
        """[ntypes, width] the embedding of every type."""
        value = self.known @ self.weight
        if self.bias is not None:
            value = value + self.bias
        copies, rest = divmod(value.shape[1], self.known.shape[1])
        return value + self.known.repeat(1, copies) if not rest and copies in (1, 2) else value


def _known(type_map: Sequence[str], electronic: bool) -> Tensor:
    if not electronic:
        return torch.eye(len(type_map), dtype=torch.float64)
    taken = torch.tensor([spin_orbitals(name) for name in type_map], dtype=torch.float64)
    return taken / taken.shape[1] ** 0.5
