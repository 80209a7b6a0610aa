"""The se_e2_a potential as a textbook would write it: energies from coordinates, everything else by autograd.

It shares no code with the package: dense sums over all images, derivatives by a graph of the derivative. Slow, plain,
and what the package's explicit gradients are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.config import ModelConfig
from lockstep.model import Potential


@dataclass(frozen=True)
class Answer:
    """Energy [], atomic energies [n], forces [n, 3] and virial [3, 3] of one frame, differentiable."""

    energy: Tensor
    atom_energy: Tensor
    force: Tensor
    virial: Tensor


class ReferenceModel:
    """The weights and constants of a potential, copied by name, with its own way from them to energies."""

    def __init__(self, potential: Potential) -> None:
        self.config: ModelConfig = potential.config
        self.weights: dict[str, Tensor] = {
            name: value.detach().clone().requires_grad_() for name, value in potential.named_parameters()
        }
        self.constants: dict[str, Tensor] = {name: value.detach().clone() for name, value in potential.named_buffers()}

    def __call__(
        self,
        coord: Tensor,
        cell: Tensor | None,
        types: Tensor,
        fparam: Tensor | None = None,
        aparam: Tensor | None = None,
    ) -> Answer:
        coord = coord.clone().requires_grad_()
        strain = torch.zeros(3, 3, dtype=coord.dtype, requires_grad=True)
        deform = torch.eye(3, dtype=coord.dtype) + strain
        energies = self._atom_energies(coord @ deform, None if cell is None else cell @ deform, types, fparam, aparam)
        slope = torch.autograd.grad(energies.sum(), (coord, strain), create_graph=True)
        return Answer(energies.sum(), energies, -slope[0], -slope[1].T)

    def _atom_energies(
        self, coord: Tensor, cell: Tensor | None, types: Tensor, fparam: Tensor | None, aparam: Tensor | None
    ) -> Tensor:
        moments = self._moments(coord, cell, types)
        axis = self.config.descriptor.axis_neuron
        inputs = torch.einsum("ncm,nca->nma", moments, moments[:, :, :axis]).flatten(1)
        extra = [p for p in (None if fparam is None else fparam.expand(len(types), -1), aparam) if p is not None]
        vacuum = torch.zeros_like(inputs)
        if extra:
            mean = self.constants["network.fitting.parameter_mean"]
            scale = self.constants["network.fitting.parameter_scale"]
            scaled = (torch.cat(extra, dim=1) - mean) * scale
            inputs, vacuum = torch.cat([inputs, scaled], dim=1), torch.cat([vacuum, scaled], dim=1)
        fitting = self.config.fitting_net
        result = self.constants["network.bias"][types]
        for t in range(len(self.config.type_map)):
            net = f"network.fitting.nets.{t}"
            value = self._fit(net, inputs)
            if fitting.atom_ener and fitting.atom_ener[t] is not None:
                value = value - self._fit(net, vacuum)
            result = result + torch.where(types == t, value, 0.0)
        return result

    def _moments(self, coord: Tensor, cell: Tensor | None, types: Tensor) -> Tensor:
        """X = 1/sum(sel) * sum over slots of R^T N(R_0), slots without a neighbour included: [n, 4, width]."""
        config = self.config.descriptor
        ntypes = len(self.config.type_map)
        vector, distance, neighbour, candidate = _images(coord, cell, config.rcut)
        mean, std_radial, std_angular = (
            self.constants[name][types] for name in ("row_mean", "row_std_radial", "row_std_angular")
        )
        near = distance + config.env_protection
        weight = _switch(distance, config.rcut_smth, config.rcut)
        radial = (weight / near - mean[:, None]) / std_radial[:, None]
        angular = (weight / near**2 / std_angular[:, None]).unsqueeze(-1) * vector
        rows = torch.cat([radial.unsqueeze(-1), angular], dim=-1)
        empty = -mean / std_radial
        total = coord.new_zeros(len(types), 4, config.neuron[-1])
        for a, b in product(range(ntypes), range(ntypes)):
            index = b if config.type_one_side else a + ntypes * b
            of_type = candidate & (types[neighbour] == b)
            nearest = _nearest(distance, of_type, config.sel[b])
            n_empty = config.sel[b] - nearest.sum(dim=1)
            if (a, b) in config.exclude_types or (b, a) in config.exclude_types:
                nearest = torch.zeros_like(nearest)
            net = f"network.descriptor.nets.{index}"
            value = self._embed(net, radial.reshape(-1, 1)).view(*radial.shape, -1)
            x = torch.einsum("np,npc,npm->ncm", nearest.to(coord.dtype), rows, value)
            first_row = (n_empty * empty).unsqueeze(1) * self._embed(net, empty.unsqueeze(1))
            x = x + F.pad(first_row.unsqueeze(1), (0, 0, 0, 3))
            total = total + torch.where((types == a)[:, None, None], x, 0.0)
        return total / sum(config.sel)

    def _embed(self, net: str, x: Tensor) -> Tensor:
        config = self.config.descriptor
        for k in range(len(config.neuron)):
            x = self._layer(f"{net}.layers.{k}", x, config.activation_function)
        return x

    def _fit(self, net: str, x: Tensor) -> Tensor:
        config = self.config.fitting_net
        for k in range(len(config.neuron)):
            x = self._layer(f"{net}.layers.{k}", x, config.activation_function)
        last = f"{net}.layers.{len(config.neuron)}"
        return (x @ self.weights[f"{last}.weight"] + self.weights[f"{last}.bias"]).squeeze(1)

    def _layer(self, name: str, x: Tensor, activation: str) -> Tensor:
        y = textbook_activation(activation)(x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])
        y = y * self.weights.get(f"{name}.idt", 1.0)
        if y.shape[1] == x.shape[1]:
            return x + y
        if y.shape[1] == 2 * x.shape[1]:
            return torch.cat([x, x], dim=1) + y
        return y


def _images(coord: Tensor, cell: Tensor | None, rcut: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors [n, P, 3] from each atom to all images of all atoms, distances [n, P], the atom behind each image
    [P], and whether it is a neighbour [n, P]. Distances of images that are not neighbours are of no use."""
    if cell is None:
        shifts = coord.new_zeros(1, 3)
    else:
        heights = torch.linalg.det(cell.detach()).abs() / torch.linalg.vector_norm(
            torch.linalg.cross(cell.detach()[[1, 2, 0]], cell.detach()[[2, 0, 1]]), dim=1
        )
        inside = coord.detach() @ torch.linalg.inv(cell.detach())
        spread = (inside.max(dim=0).values - inside.min(dim=0).values).max().item()
        reach = [math.ceil(rcut / h + spread) for h in heights.tolist()]
        numbers = [torch.arange(-m, m + 1, dtype=coord.dtype) for m in reach]
        shifts = torch.cartesian_prod(*numbers) @ cell
    n, m = len(coord), len(shifts)
    atom = torch.arange(n).repeat_interleave(m)
    images = coord[atom] + shifts.repeat(n, 1)
    useful = (torch.cdist(images.detach(), coord.detach()) < rcut).any(dim=1)
    vector = images[useful].unsqueeze(0) - coord.unsqueeze(1)
    square = (vector**2).sum(dim=-1)
    candidate = (square > 1e-12) & (square < rcut**2)
    distance = torch.sqrt(torch.where(candidate, square, rcut**2))
    return vector, distance, atom[useful], candidate


def _nearest(distance: Tensor, candidate: Tensor, count: int) -> Tensor:
    """The `count` nearest candidates of each row, as a mask."""
    far = torch.where(candidate, distance.detach(), math.inf)
    rank = far.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return candidate & (rank < count)


def _switch(r: Tensor, rcut_smth: float, rcut: float) -> Tensor:
    x = (r - rcut_smth) / (rcut - rcut_smth)
    middle = x**3 * (-6 * x**2 + 15 * x - 10) + 1
    return torch.where(x < 0, 1.0, torch.where(x > 1, 0.0, middle))


def textbook_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Activation functions in elementary operations."""
    family, _, number = name.partition(":")
    if family == "silut":
        return lambda x: _silut(x, float(number or 3.0))
    return _TEXTBOOK[family]


def _silut(x: Tensor, threshold: float) -> Tensor:
    at = 1 / (1 + math.exp(-threshold))
    slope = at + threshold * at * (1 - at)
    return torch.where(x < threshold, x / (1 + torch.exp(-x)), torch.tanh(slope * (x - threshold)) + threshold * at)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_TEXTBOOK: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "relu6": lambda x: torch.where(x > 6, 6.0, torch.where(x > 0, x, 0.0)),
    "softplus": lambda x: torch.log1p(torch.exp(x)),
    "gelu": _gelu,
    "gelu_tf": _gelu,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "none": lambda x: x,
    "linear": lambda x: x,
}
