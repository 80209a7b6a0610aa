"""`se_atten`, `dpa1`, `se_atten_v2` without attention: one embedding net for all types, which it sees through a type
embedding.

For a pair of types the net is a function of the radial number alone, as in `se_e2_a`, and is expanded as such, for the
pairs of types that a micro-batch has.
    concat            N(s, neighbour's embedding, centre's embedding)
    strip             N(s) (1 + M(embeddings))
    strip, smooth     N(s) (1 + w M(embeddings)), w being the switching function: two sums, of rows and of w times rows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.config import SeAttenConfig, SeAttenV2Config
from lockstep.device import chosen
from lockstep.geometry import Columns, Features, Moments, View
from lockstep.network.contraction import AsItIs, Contraction, Quadratic, SideBySide
from lockstep.network.descriptors.base import Embedding
from lockstep.network.descriptors.sums import ANY, Coefficients, SlotSum, by_centre_type
from lockstep.network.descriptors.type_embedding import TypeEmbedding
from lockstep.network.mlp import embedding_net
from lockstep.network.precision import torch_dtype


class SeAtten(SlotSum):
    """X = sum over slots of row^T N(radial, types); beside it, if asked for, the centre's type embedding."""

    mixed_types = True

    def __init__(
        self, config: SeAttenConfig | SeAttenV2Config, type_map: Sequence[str], generator: torch.Generator
    ) -> None:
        super().__init__()
        (cutoff,) = config.cutoffs(len(type_map))
        self.width, self.norm, self.dtype = config.neuron[-1], cutoff.n_slots, torch_dtype(config.precision)
        self.type_one_side, self.stripped, self.smooth = config.type_one_side, config.stripped, config.smooth
        self.concat_output = config.concat_output_tebd
        self.type_embedding = TypeEmbedding(
            type_map,
            config.tebd_dim,
            electronic=config.use_econf_tebd,
            bias=config.use_tebd_bias,
            dtype=self.dtype,
            generator=generator,
        )
        n_types = config.tebd_dim * (1 if config.type_one_side else 2)
        options = (config.neuron, config.activation_function, config.resnet_dt, self.dtype, generator)
        self.net = embedding_net(*options, n_in=1 if self.stripped else 1 + n_types)
        self.strip_net = embedding_net(*options, n_in=n_types) if self.stripped else None
        self.views = self._views()
        self.contraction = self._contraction(config)
        self.requires_grad_(config.trainable)

    def _views(self) -> tuple[View, ...]:
        if self.stripped and self.smooth:
            weighted = View(dtype=self.dtype, columns=Columns.PRESENT, switched=True)
            return (View(dtype=self.dtype, columns=Columns.ONE), weighted)
        return (View(dtype=self.dtype, columns=Columns.PRESENT),)

    def _contraction(self, config: SeAttenConfig | SeAttenV2Config) -> Contraction:
        product = Quadratic(self.width, config.axis_neuron)
        return SideBySide([product, AsItIs(config.tebd_dim)]) if self.concat_output else product

    def forward(self, features: Sequence[Features]) -> tuple[Tensor, Any]:
        x, tape = super().forward(features)
        if not self.concat_output:
            return x, tape
        table, blocks = self.type_embedding(), enumerate(features[0].centre_blocks)
        own = [table[t].expand(block.stop - block.start, -1) for t, block in blocks if block.stop > block.start]
        return torch.cat([x.flatten(1), torch.cat(own)], dim=1), tape

    def pull_back(self, tape: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """The type embedding depends on no coordinates, so its gradient ends here."""
        if self.concat_output:
            gradient = gradient[:, : 4 * self.width].reshape(-1, 4, self.width)
        return super().pull_back(tape, gradient)

    def embedding(self, view: int, centre_type: int, neighbour_type: int) -> Embedding:
        if neighbour_type == ANY:
            return Embedding(self.net)
        (pair,) = self._pairs([centre_type], [neighbour_type])[0]
        if self.strip_net is None:
            return Embedding(self.net, tail=pair)
        return Embedding(self.net, factor=self._factor(pair.unsqueeze(0))[0])

    def embeddings(self, cutoff: int, centre_type: int, types: Sequence[int]) -> Iterator[Embedding]:
        if len(self.views) > 1:
            yield self.embedding(0, centre_type, ANY)
        yield from (self.embedding(len(self.views) - 1, centre_type, t) for t in types)

    def coefficients(self, view: int, features: Moments) -> Coefficients:
        centres = [t for t, _ in features.present]
        fit, nodes = features.fit, features.node_radial
        if not features.columns:
            stacked = fit @ self._radial(nodes)
        elif self.strip_net is None:
            pairs = self._pairs(centres, features.columns).to(nodes.dtype)
            shape = (len(centres), pairs.shape[1], nodes.shape[1])
            inputs = torch.cat(
                [nodes[:, None, :, None].expand(*shape, 1), pairs[:, :, None].expand(*shape, pairs.shape[2])], dim=3
            )
            value = self.net.value(inputs.reshape(-1, inputs.shape[3]))
            stacked = (fit @ value.view(*shape, self.width)).flatten(1, 2)
        else:
            factor = self._factor(self._pairs(centres, features.columns).to(nodes.dtype))
            stacked = ((fit @ self._radial(nodes))[:, None] * factor[:, :, None]).flatten(1, 2)
        return by_centre_type(features, (stacked / self.norm).to(self.dtype))

    def _radial(self, nodes: Tensor) -> Tensor:
        """[centre types, nodes, width] the net of the radial number alone."""
        return self.net.value(nodes.reshape(-1, 1)).view(*nodes.shape, self.width)

    def _pairs(self, centres: Sequence[int], neighbours: Sequence[int]) -> Tensor:
        """[centres, neighbours, ...] what the nets see of pairs of types."""
        table = self.type_embedding()
        theirs = chosen(table, neighbours).expand(len(centres), -1, -1)
        if self.type_one_side:
            return theirs
        own = chosen(table, centres).unsqueeze(1).expand(-1, len(neighbours), -1)
        return torch.cat([theirs, own], dim=2)

    def _factor(self, pairs: Tensor) -> Tensor:
        """What the net of the radial number is multiplied by, in the view that tells types apart."""
        assert self.strip_net is not None
        value = self.strip_net.value(pairs.reshape(-1, pairs.shape[-1])).view(*pairs.shape[:-1], self.width)
        return value if self.smooth else 1.0 + value
