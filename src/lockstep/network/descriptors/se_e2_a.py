"""`se_e2_a`: X = sum over slots of row^T N(radial), from which the descriptor X^T X[:, :axis] is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from lockstep.config import SeE2AConfig, SeE2RConfig
from lockstep.geometry import Moments, Rows, View
from lockstep.network.contraction import Quadratic
from lockstep.network.descriptors.base import Embedding
from lockstep.network.descriptors.sums import Coefficients, SlotSum, by_centre_type
from lockstep.network.mlp import MLP, embedding_net
from lockstep.network.nodes import node_coefficients
from lockstep.network.precision import torch_dtype


class NetsByType(SlotSum):
    """One embedding net for each neighbour type (`type_one_side`), or for each pair of centre and neighbour type."""

    def __init__(
        self,
        config: SeE2AConfig | SeE2RConfig,
        type_map: Sequence[str],
        generator: torch.Generator,
        *,
        angular: bool = True,
    ) -> None:
        super().__init__()
        self.ntypes = len(type_map)
        (cutoff,) = config.cutoffs(self.ntypes)
        self.width = config.neuron[-1]
        self.type_one_side = config.type_one_side
        self.norm = cutoff.n_slots
        self.dtype = torch_dtype(config.precision)
        self.views = (View(dtype=self.dtype, angular=angular),)
        self.nets = nn.ModuleList(
            embedding_net(config.neuron, config.activation_function, config.resnet_dt, self.dtype, generator)
            for _ in range(self.ntypes if config.type_one_side else self.ntypes**2)
        )
        self.requires_grad_(config.trainable)

    def net(self, centre_type: int, neighbour_type: int) -> MLP:
        return self._net(self.number(centre_type, neighbour_type))

    def number(self, centre_type: int, neighbour_type: int) -> int:
        """Which of the nets serves a pair of types."""
        return neighbour_type if self.type_one_side else centre_type + self.ntypes * neighbour_type

    def _net(self, number: int) -> MLP:
        net = self.nets[number]
        assert isinstance(net, MLP)
        return net

    def embedding(self, view: int, centre_type: int, neighbour_type: int) -> Embedding:
        return Embedding(self.net(centre_type, neighbour_type))

    def embeddings(self, cutoff: int, centre_type: int, types: Sequence[int]) -> Iterator[Embedding]:
        return (self.embedding(0, centre_type, t) for t in types)

    def centre_groups(self, features: Rows) -> list[tuple[int, slice]]:
        """Centres that share their nets: everyone, or those of one type."""
        if self.type_one_side:
            return [(0, slice(0, features.rows.shape[0]))]
        return super().centre_groups(features)

    def coefficients(self, view: int, features: Moments) -> Coefficients:
        centres = [t for t, _ in features.present]
        pairs = [(t, neighbour) for t in centres for neighbour in features.columns]
        used = dict.fromkeys(self.number(*pair) for pair in pairs)
        which = [list(used).index(self.number(*pair)) for pair in pairs]
        nodes = features.node_radial.repeat_interleave(len(features.columns), dim=0)
        coefficients = node_coefficients([self._net(k) for k in used], nodes, which, features.fit)
        stacked = coefficients.view(len(centres), -1, self.width) / self.norm
        return by_centre_type(features, stacked.to(self.dtype))


class SeE2A(NetsByType):
    """Smooth two-body embedding with radial and angular information."""

    def __init__(self, config: SeE2AConfig, type_map: Sequence[str], generator: torch.Generator) -> None:
        super().__init__(config, type_map, generator)
        self.contraction = Quadratic(self.width, config.axis_neuron)
