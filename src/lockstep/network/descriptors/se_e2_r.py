"""`se_e2_r`: the mean of the embedding net's value over slots. Directions play no part."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.config import SeE2RConfig
from lockstep.network.contraction import AsItIs
from lockstep.network.descriptors.se_e2_a import NetsByType

_SCALE = 5
"""DeePMD-kit divides the mean by this number."""


class SeE2R(NetsByType):
    """Smooth two-body embedding with radial information."""

    def __init__(self, config: SeE2RConfig, type_map: Sequence[str], generator: torch.Generator) -> None:
        super().__init__(config, type_map, generator, angular=False)
        self.norm *= _SCALE
        self.contraction = AsItIs(1, self.width)
