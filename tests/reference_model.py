"""The potentials as a textbook would write them: energies from coordinates, everything else by autograd.

It shares no code with the package: dense sums over all images, derivatives by a graph of the derivative. Slow, plain,
and what the package's explicit gradients are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

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
        parts, inputs = self.config.descriptor.parts(), []
        for number, part in enumerate(parts):
            prefix = "network.descriptor" if len(parts) == 1 else f"network.descriptor.members.{number}"
            names = [f"{name}_{number}" if number else name for name in _ROW_CONSTANTS]
            describe = {"se_e2_a": self._se_e2_a, "se_e2_r": self._se_e2_r}.get(part.type, self._se_atten)
            inputs.append(describe(part, prefix, _Rows(part, coord, cell, types, [self.constants[n] for n in names])))
        inputs = torch.cat(inputs, dim=1)
        extra = [p for p in (None if fparam is None else fparam.expand(len(types), -1), aparam) if p is not None]
        vacuum = torch.zeros_like(inputs)
        if extra:
            mean = self.constants["network.fitting.parameter_mean"]
            scale = self.constants["network.fitting.parameter_scale"]
            scaled = (torch.cat(extra, dim=1) - mean) * scale
            inputs, vacuum = torch.cat([inputs, scaled], dim=1), torch.cat([vacuum, scaled], dim=1)
        fitting = self.config.fitting_net
        result = self.constants["network.bias"][types]
        mixed = any("se_atten" in part.type for part in parts)
        for t in range(len(self.config.type_map)):
            net = f"network.fitting.nets.{0 if mixed else t}"
            value = self._fit(net, inputs)
            given = fitting.atom_ener
            if given and (given[t] is not None or (mixed and any(energy is not None for energy in given))):
                value = value - self._fit(net, vacuum)
            result = result + torch.where(types == t, value, 0.0)
        return result

    def _se_e2_a(self, config: Any, prefix: str, seen: _Rows) -> Tensor:
        """X = 1/sum(sel) * sum over slots of R^T N(R_0), slots without a neighbour included; D = X^T X[:, :axis]."""
        total = seen.rows.new_zeros(seen.n, 4, config.neuron[-1])
        for a, _, index, kept, n_empty in self._pairs_of_types(config, seen):
            net = f"{prefix}.nets.{index}"
            x = torch.einsum("np,npc,npm->ncm", kept, seen.rows, self._embed_all(config, net, seen.radial))
            first_row = (n_empty * seen.empty).unsqueeze(1) * self._embed(config, net, seen.empty.unsqueeze(1))
            x = x + F.pad(first_row.unsqueeze(1), (0, 0, 0, 3))
            total = total + torch.where((seen.types == a)[:, None, None], x, 0.0)
        return _contracted(total / sum(config.sel), config.axis_neuron)

    def _se_e2_r(self, config: Any, prefix: str, seen: _Rows) -> Tensor:
        """D = 1/(5 sum(sel)) * sum over slots of N(R_0); excluded neighbours count with N(0)."""
        total = seen.rows.new_zeros(seen.n, config.neuron[-1])
        for a, b, index, kept, n_empty in self._pairs_of_types(config, seen):
            net = f"{prefix}.nets.{index}"
            x = torch.einsum("np,npm->nm", kept, self._embed_all(config, net, seen.radial))
            x = x + n_empty.unsqueeze(1) * self._embed(config, net, seen.empty.unsqueeze(1))
            n_excluded = config.sel[b] - n_empty - kept.sum(dim=1)
            x = x + n_excluded.unsqueeze(1) * self._embed(config, net, torch.zeros(1, 1, dtype=x.dtype))
            total = total + torch.where((seen.types == a)[:, None], x, 0.0)
        return total / (5 * sum(config.sel))

    def _pairs_of_types(self, config: Any, seen: _Rows) -> Iterator[tuple[int, int, int, Tensor, Tensor]]:
        """Centre type, neighbour type, number of the net, which images count [n, P], and how many slots are empty."""
        ntypes = len(self.config.type_map)
        for a, b in product(range(ntypes), range(ntypes)):
            nearest = _nearest(seen.distance, seen.candidate & (seen.types[seen.neighbour] == b), config.sel[b])
            n_empty = config.sel[b] - nearest.sum(dim=1)
            if (a, b) in config.exclude_types or (b, a) in config.exclude_types:
                nearest = torch.zeros_like(nearest)
            yield a, b, b if config.type_one_side else a + ntypes * b, nearest.to(seen.rows.dtype), n_empty

    def _se_atten(self, config: Any, prefix: str, seen: _Rows) -> Tensor:
        """X = 1/sel * sum over slots of R^T G; empty slots have the type of the first atom."""
        table = self._type_embedding(config, prefix)
        own = table[seen.types]
        nearest = _nearest(seen.distance, seen.candidate, config.sel)
        n_empty = config.sel - nearest.sum(dim=1)
        allowed = torch.ones(len(table), len(table), dtype=seen.rows.dtype)
        for a, b in config.exclude_types:
            allowed[a, b] = allowed[b, a] = 0.0
        kept = nearest * allowed[seen.types][:, seen.types[seen.neighbour]]
        theirs = table[seen.types[seen.neighbour]].expand(seen.n, -1, -1)
        g = self._pair_embedding(config, prefix, seen.radial, theirs, own, seen.weight)
        x = torch.einsum("np,npc,npm->ncm", kept, seen.rows, g)
        first = table[seen.types[0]].expand(seen.n, 1, -1)
        phantom = self._pair_embedding(config, prefix, seen.empty[:, None], first, own, torch.zeros(seen.n, 1))[:, 0]
        x = x + F.pad(((n_empty * seen.empty).unsqueeze(1) * phantom).unsqueeze(1), (0, 0, 0, 3))
        d = _contracted(x / config.sel, config.axis_neuron)
        return torch.cat([d, own], dim=1) if config.concat_output_tebd else d

    def _type_embedding(self, config: Any, prefix: str) -> Tensor:
        known = torch.eye(len(self.config.type_map), dtype=torch.float64)
        if config.use_econf_tebd:
            taken = [[1 if (n, o) in _TAKEN[name] else -1 for n, o in _SPIN_ORBITALS] for name in self.config.type_map]
            known = torch.tensor(taken, dtype=torch.float64) / math.sqrt(118)
        table = known @ self.weights[f"{prefix}.type_embedding.weight"]
        table = table + self.weights.get(f"{prefix}.type_embedding.bias", 0.0)
        if table.shape[1] == known.shape[1]:
            return table + known
        return table + torch.cat([known, known], dim=1) if table.shape[1] == 2 * known.shape[1] else table

    def _pair_embedding(
        self, config: Any, prefix: str, radial: Tensor, theirs: Tensor, own: Tensor, weight: Tensor
    ) -> Tensor:
        """G [n, P, width] of radial numbers [n, P] and the types' embeddings."""
        own = own.unsqueeze(1).expand(-1, theirs.shape[1], -1)
        types = theirs if config.type_one_side else torch.cat([theirs, own], dim=2)
        radial = radial.unsqueeze(2)
        if not config.stripped:
            inputs = torch.cat([radial, types], dim=2)
            return self._embed(config, f"{prefix}.net", inputs.flatten(0, 1)).view(*inputs.shape[:2], -1)
        g = self._embed(config, f"{prefix}.net", radial.flatten(0, 1)).view(*radial.shape[:2], -1)
        t = self._embed(config, f"{prefix}.strip_net", types.flatten(0, 1)).view(*radial.shape[:2], -1)
        return g + g * t * (weight.unsqueeze(2) if config.smooth else 1.0)

    def _embed_all(self, config: Any, net: str, radial: Tensor) -> Tensor:
        return self._embed(config, net, radial.reshape(-1, 1)).view(*radial.shape, -1)

    def _embed(self, config: Any, net: str, x: Tensor) -> Tensor:
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


_ROW_CONSTANTS = ("row_mean", "row_std_radial", "row_std_angular")
_SPIN_ORBITALS = [(orbital, spin) for orbital in range(59) for spin in range(2)]
_TAKEN = {
    "H": {(0, 1)},
    "O": {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 1), (4, 1)},
}


class _Rows:
    """Rows of all images of all atoms seen from every atom, and what is needed to choose among them."""

    def __init__(
        self, config: Any, coord: Tensor, cell: Tensor | None, types: Tensor, constants: Sequence[Tensor]
    ) -> None:
        self.n, self.types = len(types), types
        vector, self.distance, self.neighbour, self.candidate = _images(coord, cell, config.rcut)
        mean, std_radial, std_angular = (constant[types] for constant in constants)
        near = self.distance + config.env_protection
        self.weight = _switch(self.distance, config.rcut_smth, config.rcut)
        self.radial = (self.weight / near - mean[:, None]) / std_radial[:, None]
        angular = (self.weight / near**2 / std_angular[:, None]).unsqueeze(-1) * vector
        self.rows = torch.cat([self.radial.unsqueeze(-1), angular], dim=-1)
        self.empty = -mean / std_radial


def _contracted(x: Tensor, axis: int) -> Tensor:
    return torch.einsum("ncm,nca->nma", x, x[:, :, :axis]).flatten(1)


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
