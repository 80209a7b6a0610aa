"""The embedding of `se_e2_a`: X = sum over slots of row^T N(radial), from which the descriptor X^T X[:, :axis] is made.

X comes from the features in one of two ways: from every neighbour's row by the exact net, or from the rows' moments
by the net's expansion in splines. Everything after X is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.config import SeE2AConfig
from lockstep.geometry import Features, Moments, Rows
from lockstep.network.blockwise import products
from lockstep.network.mlp import MLP, embedding_net
from lockstep.network.precision import torch_dtype

Embedded = tuple[Tensor, list[Tensor]]
"""An embedding net's value [c, s, width] on a block of slots, and its layers' slopes."""


@dataclass(frozen=True)
class RowTape:
    """The exact nets' values and slopes, for each group of centres and each neighbour type."""

    features: Rows
    embedded: list[list[Embedded]]


@dataclass(frozen=True)
class MomentTape:
    """For each centre type that occurs, its rows and its nets' spline coefficients [ntypes * size, width]."""

    features: Moments
    coefficients: list[tuple[slice, Tensor]]


Tape = RowTape | MomentTape
"""What the forward pass leaves behind for `pull_back`."""


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

    def forward(self, features: Features) -> tuple[Tensor, Tape]:
        """The matrices X [C, 4, width] and the tape for `pull_back`."""
        return self._from_rows(features) if isinstance(features, Rows) else self._from_moments(features)

    def pull_back(self, tape: Tape, gradient: Tensor) -> Tensor:
        """dE/d(features) from dE/dX: [C, S, 4] for rows, [C, 4, ntypes * size] for moments."""
        if isinstance(tape, RowTape):
            return self._back_to_rows(tape, gradient / self.n_slots)
        return self._back_to_moments(tape, gradient)

    def _from_rows(self, features: Rows) -> tuple[Tensor, RowTape]:
        totals, embedded = [], []
        for centre_type, centres in self._centre_groups(features):
            blocks = []
            total = features.rows.new_zeros(centres.stop - centres.start, 4, self.width)
            for neighbour_type, slots in enumerate(features.slot_blocks):
                block = features.rows[centres, slots]
                radial = features.radial[centres, slots].reshape(-1, 1)
                value, slopes = self.net(centre_type, neighbour_type)(radial)
                value = value.view(*block.shape[:2], self.width)
                total = torch.baddbmm(total, block.transpose(1, 2), value)
                blocks.append((value, slopes))
            totals.append(total)
            embedded.append(blocks)
        return torch.cat(totals) / self.n_slots, RowTape(features, embedded)

    def _back_to_rows(self, tape: RowTape, x_gradient: Tensor) -> Tensor:
        features, groups = tape.features, []
        for (centre_type, centres), blocks in zip(self._centre_groups(features), tape.embedded, strict=True):
            out = x_gradient[centres]
            pieces = []
            for neighbour_type, slots in enumerate(features.slot_blocks):
                value, slopes = blocks[neighbour_type]
                direct = torch.bmm(value, out.transpose(1, 2))
                value_gradient = torch.bmm(features.rows[centres, slots], out).view(-1, self.width)
                through_net = self.net(centre_type, neighbour_type).pull_back(slopes, value_gradient)
                radial = direct[..., :1] + through_net.view(*value.shape[:2], 1)
                pieces.append(torch.cat([radial, direct[..., 1:]], dim=-1))
            groups.append(torch.cat(pieces, dim=1))
        return torch.cat(groups)

    def _centre_groups(self, features: Rows) -> list[tuple[int, slice]]:
        """Centres that share their nets: everyone, or those of one type."""
        if self.type_one_side:
            return [(0, slice(0, features.rows.shape[0]))]
        return [(t, block) for t, block in enumerate(features.centre_blocks) if block.stop > block.start]

    def _from_moments(self, features: Moments) -> tuple[Tensor, MomentTape]:
        coefficients = self.coefficients(features)
        x = products(features.values.flatten(0, 1), coefficients)
        return x.view(-1, 4, self.width), MomentTape(features, coefficients)

    def _back_to_moments(self, tape: MomentTape, x_gradient: Tensor) -> Tensor:
        transposed = [(rows, c.T) for rows, c in tape.coefficients]
        return products(x_gradient.flatten(0, 1), transposed).view_as(tape.features.values)

    def coefficients(self, features: Moments) -> list[tuple[slice, Tensor]]:
        """For each centre type that occurs, its rows of the flattened moments and its nets' spline coefficients
        [ntypes * size, width], divided by the number of slots.

        In float64 whatever the precision: the fit at the ends of the interval amplifies rounding.
        """
        present = [(t, block) for t, block in enumerate(features.centre_blocks) if block.stop > block.start]
        fit = torch.as_tensor(features.basis.fit, device=features.values.device)
        nodes = features.node_radial[[t for t, _ in present]]
        columns = []
        for neighbour_type in range(self.ntypes):
            if self.type_one_side:
                value = self.net(0, neighbour_type).value(nodes.reshape(-1, 1))
            else:
                nets = [self.net(t, neighbour_type) for t, _ in present]
                value = torch.cat([net.value(z.unsqueeze(1)) for net, z in zip(nets, nodes, strict=True)])
            columns.append(fit @ value.view(len(present), -1, self.width))
        stacked = (torch.cat(columns, dim=1) / self.n_slots).to(self.dtype)
        return [
            (slice(4 * block.start, 4 * block.stop), c) for (_, block), c in zip(present, stacked.unbind(), strict=True)
        ]
