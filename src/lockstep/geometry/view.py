"""How a descriptor wants to see the neighbours of its centres."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch


class Columns(Enum):
    """Which neighbour types are told apart."""

    EVERY = "every type of the model"
    PRESENT = "the types that the micro-batch has"
    ONE = "none"


@dataclass(frozen=True)
class View:
    """One way of looking at the neighbours within one of the model's cutoffs; a descriptor may have several.

    Attributes:
        cutoff: number of the cutoff.
        dtype: precision of the features; geometry itself is computed in float64.
        columns: the neighbour types that have columns of their own.
        angular: rows are (radial, x, y, z); otherwise every neighbour counts as one.
        switched: rows are multiplied by the switching function.
    """

    cutoff: int = 0
    dtype: torch.dtype = torch.float64
    columns: Columns = Columns.EVERY
    angular: bool = True
    switched: bool = False

    @property
    def components(self) -> int:
        """Numbers in a row."""
        return 4 if self.angular else 1
