"""The `se_e2_a` descriptor over environment features: D = X^T X[:, :axis] with X = sum over slots of row^T N(radial)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.config import SeE2AConfig
from lockstep.geometry import Features
from lockstep.network.mlp import MLP, embedding_net
from lockstep.network.precision import torch_dtype

Embedded = tuple[Tensor, list[Tensor]]
"""An embedding net's value [c, s, width] on a block of slots, and its layers' slopes."""


@dataclass(frozen=True)
class DescriptorTape:
    """What the forward pass leaves behind for `pull_back`.

    Attributes:
        rows: the features' rows in the descriptor's precision.
        moments: [C, 4, width] the matrices X.
        embedded: for each group of centres and each neighbour type, the net's value and slopes.
    """

    features: Features
    rows: Tensor
    moments: Tensor
    embedded: list[list[Embedded]]


class SeE2A(nn.Module):
    """Smooth two-body embedding with radial and angular information.

    One embedding net for each neighbour type (`type_one_side`), or for each pair of centre and neighbour type.
    """

    def __init__(self, config: SeE2AConfig, ntypes: int, generator: torch.Generator) -> None:
        super().__init__()
        assert isinstance(config.sel, tuple), "`sel` is settled before the network is built"
        self.ntypes = ntypes
        self.axis = config.axis_neuron
        self.width = config.neuron[-1]
        self.type_one_side = config.type_one_side
        self.n_slots = sum(config.sel)
        self.dtype = torch_dtype(config.precision)
        self.nets = nn.ModuleList(
            embedding_net(config.neuron, config.activation_function, config.resnet_dt, self.dtype, generator)
            for _ in range(ntypes if config.type_one_side else ntypes**2)
        )
        self.requires_grad_(config.trainable)

    @property
    def dim_out(self) -> int:
        return self.width * self.axis

    def net(self, centre_type: int, neighbour_type: int) -> MLP:
        index = neighbour_type if self.type_one_side else centre_type + self.ntypes * neighbour_type
        net = self.nets[index]
        assert isinstance(net, MLP)
        return net

    def forward(self, features: Features) -> tuple[Tensor, DescriptorTape]:
        """Descriptors [C, width * axis] and the tape for `pull_back`."""
        radial, rows = features.radial.to(self.dtype), features.rows.to(self.dtype)
        moments, embedded = [], []
        for centre_type, centres in self._centre_groups(features):
            blocks = []
            total = rows.new_zeros(centres.stop - centres.start, 4, self.width)
            for neighbour_type, slots in enumerate(features.slot_blocks):
                block = rows[centres, slots]
                value, slopes = self.net(centre_type, neighbour_type)(radial[centres, slots].reshape(-1, 1))
                value = value.view(*block.shape[:2], self.width)
                total = torch.baddbmm(total, block.transpose(1, 2), value)
                blocks.append((value, slopes))
            moments.append(total / self.n_slots)
            embedded.append(blocks)
        tape = DescriptorTape(features, rows, torch.cat(moments), embedded)
        return self._contract(tape.moments), tape

    def pull_back(self, tape: DescriptorTape, gradient: Tensor) -> Tensor:
        """dE/d(rows) [C, S, 4] from dE/d(descriptor); the radial component's way through the nets is included."""
        moments_gradient = self._pull_back_contract(tape.moments, gradient) / self.n_slots
        groups = []
        for (centre_type, centres), blocks in zip(
            self._centre_groups(tape.features), tape.embedded, strict=True
        ):
            out = moments_gradient[centres]
            pieces = []
            for neighbour_type, slots in enumerate(tape.features.slot_blocks):
                value, slopes = blocks[neighbour_type]
                direct = torch.bmm(value, out.transpose(1, 2))
                value_gradient = torch.bmm(tape.rows[centres, slots], out).view(-1, self.width)
                through_net = self.net(centre_type, neighbour_type).pull_back(slopes, value_gradient)
                radial = direct[..., :1] + through_net.view(*value.shape[:2], 1)
                pieces.append(torch.cat([radial, direct[..., 1:]], dim=-1))
            groups.append(torch.cat(pieces, dim=1))
        return torch.cat(groups)

    def _contract(self, moments: Tensor) -> Tensor:
        return torch.bmm(moments.transpose(1, 2), moments[:, :, : self.axis]).flatten(1)

    def _pull_back_contract(self, moments: Tensor, gradient: Tensor) -> Tensor:
        gradient = gradient.view(-1, self.width, self.axis)
        left = torch.bmm(moments[:, :, : self.axis], gradient.transpose(1, 2))
        right = torch.bmm(moments, gradient)
        return torch.cat([left[:, :, : self.axis] + right, left[:, :, self.axis :]], dim=2)

    def _centre_groups(self, features: Features) -> list[tuple[int, slice]]:
        """Centres that share their nets: everyone, or those of one type."""
        if self.type_one_side:
            return [(0, slice(0, features.rows.shape[0]))]
        return [(t, block) for t, block in enumerate(features.centre_blocks) if block.stop > block.start]
