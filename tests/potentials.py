"""Small random potentials and frames: what the tests of geometry, network, model and interop are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.config import ModelConfig
from lockstep.geometry import RowScale
from lockstep.model import Potential, Prediction

Changes = dict[str, Any]

DESCRIPTOR: Changes = {
    "type": "se_e2_a",
    "sel": [10, 16],
    "rcut": 4.0,
    "rcut_smth": 1.0,
    "neuron": [4, 8, 8],
    "axis_neuron": 3,
    "type_one_side": True,
    "seed": 1,
}
FITTING: Changes = {"neuron": [10, 10], "resnet_dt": True, "seed": 2}


@dataclass(frozen=True)
class Variant:
    """How a potential differs from the plain one."""

    descriptor: Changes
    fitting: Changes

    @property
    def parameters(self) -> bool:
        return bool(self.fitting.get("numb_fparam") or self.fitting.get("numb_aparam"))


def _variant(descriptor: Changes | None = None, **fitting: Any) -> Variant:
    return Variant(descriptor or {}, fitting)


VARIANTS: dict[str, Variant] = {
    "one_side": _variant(),
    "two_side": _variant({"type_one_side": False}),
    "exclude": _variant({"exclude_types": [[0, 1]]}),
    "exclude_two_side": _variant({"type_one_side": False, "exclude_types": [[0, 0], [1, 0]]}),
    "env_protection": _variant({"env_protection": 0.3}),
    "set_davg_zero": _variant({"set_davg_zero": True}),
    "resnet_dt": _variant({"resnet_dt": True}),
    "no_resnet_dt": _variant(resnet_dt=False),
    "equal_widths": _variant({"neuron": [6, 6, 6], "resnet_dt": True}, neuron=[8, 8, 8]),
    "doubling_widths": _variant({"neuron": [3, 6, 12]}, neuron=[5, 10, 20]),
    "other_widths": _variant({"neuron": [5, 7, 4], "resnet_dt": True}, neuron=[9, 4, 6]),
    "one_layer": _variant({"neuron": [5]}, neuron=[6]),
    "no_fitting_layer": _variant(neuron=[], numb_fparam=1),
    "full_axis": _variant({"neuron": [3, 3], "axis_neuron": 3}),
    "parameters": _variant(numb_fparam=2, numb_aparam=3),
    "atom_ener": _variant(atom_ener=[-1.5, None]),
    "atom_ener_parameters": _variant(atom_ener=[-1.5, 0.7], numb_fparam=1, numb_aparam=1),
}
"""Every option that changes the numbers, on its own or with those it meets."""

ACTIVATIONS = (
    "tanh",
    "sigmoid",
    "relu",
    "relu6",
    "softplus",
    "gelu",
    "gelu_tf",
    "silu",
    "silut",
    "silut:3.0",
    "silut:0.5",
    "none",
    "linear",
)


@dataclass(frozen=True)
class Frame:
    """Atoms of one frame: coord [n, 3], cell [3, 3] or None, types [n]; parameters where the model asks for them."""

    coord: NDArray
    cell: NDArray | None
    types: NDArray
    fparam: NDArray | None = None
    aparam: NDArray | None = None

    @property
    def n(self) -> int:
        return len(self.types)


def random_potential(
    descriptor: Changes | None = None,
    fitting: Changes | None = None,
    type_map: tuple[str, ...] = ("O", "H"),
    seed: int = 0,
) -> Potential:
    """A potential with random weights, random statistics of the rows, and a random energy bias."""
    config = ModelConfig.model_validate(
        {
            "type_map": type_map,
            "descriptor": _section(descriptor or {}, seed),
            "fitting_net": {**FITTING, "seed": seed, **(fitting or {})},
        }
    )
    potential = Potential(config)
    _randomise_constants(potential, np.random.default_rng([seed, 1]))
    return potential


def _section(changes: Changes, seed: int) -> Changes:
    """A descriptor's section: the plain one with changes; members of a hybrid have seeds of their own."""
    if changes.get("type") == "hybrid":
        members = [_section(member, member.get("seed", 1) + seed) for member in changes["list"]]
        return {"type": "hybrid", "list": members}
    section = {**DESCRIPTOR, "seed": seed, **changes}
    return {key: value for key, value in section.items() if value is not None}


def _randomise_constants(potential: Potential, rng: np.random.Generator) -> None:
    config, ntypes = potential.config, len(potential.type_map)
    scales = []
    for part in config.descriptor.parts():
        mean = np.zeros(ntypes) if part.set_davg_zero else rng.uniform(0.05, 0.15, ntypes)
        scales.append(RowScale(*(torch.from_numpy(x) for x in (mean, *rng.uniform(0.04, 0.1, (2, ntypes))))))
    potential.scales = scales
    bias = rng.normal(size=ntypes)
    for t, energy in enumerate(config.fitting_net.atom_ener):
        bias[t] = bias[t] if energy is None else energy
    network = potential.network
    network.bias.copy_(torch.from_numpy(bias))
    n_parameters = len(network.fitting.parameter_mean)
    network.fitting.parameter_mean.copy_(torch.from_numpy(rng.normal(size=n_parameters)))
    network.fitting.parameter_scale.copy_(torch.from_numpy(rng.uniform(0.5, 2.0, n_parameters)))


RADIAL: Changes = {"type": "se_e2_r", "axis_neuron": None}
ATTEN: Changes = {"type": "se_atten", "sel": 26, "attn_layer": 0, "tebd_dim": 3, "type_one_side": False}
STRIP: Changes = {**ATTEN, "tebd_input_mode": "strip"}
SMOOTH: Changes = {**STRIP, "smooth_type_embedding": True}
SECOND: Changes = {**ATTEN, "type": "se_atten_v2"}


def _hybrid(*members: Changes) -> Changes:
    return {"type": "hybrid", "list": [{**DESCRIPTOR, **member} for member in members]}


SHORT: Changes = {"rcut": 3.1, "rcut_smth": 0.6, "sel": [6, 9]}
KINDS: dict[str, Variant] = {
    "radial": _variant(RADIAL),
    "radial_two_side": _variant({**RADIAL, "type_one_side": False}),
    "radial_exclude": _variant({**RADIAL, "exclude_types": [[0, 1]]}),
    "radial_protection": _variant({**RADIAL, "env_protection": 0.3, "resnet_dt": True}, numb_fparam=1),
    "concat": _variant(ATTEN),
    "concat_one_side": _variant({**ATTEN, "type_one_side": True}),
    "concat_mean": _variant({**ATTEN, "set_davg_zero": False}),
    "concat_exclude": _variant({**ATTEN, "exclude_types": [[0, 1]], "env_protection": 0.2}),
    "concat_alone": _variant({**ATTEN, "concat_output_tebd": False, "use_tebd_bias": True}, numb_aparam=2),
    "concat_residual": _variant({**ATTEN, "neuron": [7, 14, 14], "resnet_dt": True, "tebd_dim": 3}),
    "concat_electronic": _variant({**ATTEN, "use_econf_tebd": True}),
    "embedding_residual": _variant({**ATTEN, "tebd_dim": 4, "use_tebd_bias": True}),
    "concat_dropping": _variant({**ATTEN, "sel": 9}),
    "strip": _variant(STRIP),
    "strip_one_side": _variant({**STRIP, "type_one_side": True, "set_davg_zero": False}),
    "strip_mean": _variant({**STRIP, "set_davg_zero": False}),
    "smooth": _variant(SMOOTH, atom_ener=[-1.5, None]),
    "smooth_mean": _variant({**SMOOTH, "set_davg_zero": False, "exclude_types": [[1, 1]]}),
    "second": _variant(SECOND),
    "second_one_side": _variant({**SECOND, "type_one_side": True}),
    "hybrid": _variant(_hybrid({}, {**RADIAL, **SHORT})),
    "hybrid_order": _variant(_hybrid({**SHORT, "type_one_side": False}, {}, {"seed": 4})),
    "hybrid_mixed": _variant(_hybrid(ATTEN, {**SECOND, "rcut": 3.3, "sel": 20})),
    "hybrid_both": _variant(_hybrid({**SMOOTH, "rcut": 3.4}, {**SHORT}, RADIAL), numb_fparam=1),
}
"""Descriptors other than `se_e2_a`, with every option that changes their numbers."""


def variant_potential(name: str, seed: int = 0) -> Potential:
    variant = {**VARIANTS, **KINDS}[name]
    return random_potential(variant.descriptor, variant.fitting, seed=seed)


CELLS = {
    "cubic": np.diag([5.2, 5.2, 5.2]),
    "triclinic": np.array([[5.4, 0.0, 0.0], [1.9, 5.1, 0.0], [-1.3, 1.7, 5.6]]),
    "large": np.array([[9.5, 0.0, 0.0], [0.8, 9.0, 0.0], [0.0, -0.5, 10.0]]),
    "none": None,
}


def random_frame(kind: str = "cubic", n: int = 6, seed: int = 0, potential: Potential | None = None) -> Frame:
    """Atoms at random, none closer than about 1.2 Angstrom; with the parameters that `potential` asks for."""
    rng = np.random.default_rng([seed, 2])
    cell = CELLS[kind]
    basis = np.diag([4.5, 4.5, 4.5]) if cell is None else cell
    coord = _apart(rng, basis, n)
    # Some atoms outside the cell, as unwrapped trajectories have them.
    if cell is not None:
        coord = coord + rng.integers(-1, 2, (n, 3)) @ cell
    types = rng.permutation(np.arange(n) % 3 > 0).astype(np.int64)
    return with_parameters(Frame(coord, cell, types), potential, rng)


def with_parameters(frame: Frame, potential: Potential | None, rng: np.random.Generator) -> Frame:
    if potential is None:
        return frame
    fitting = potential.config.fitting_net
    fparam = rng.normal(size=fitting.numb_fparam) if fitting.numb_fparam else None
    aparam = rng.normal(size=(frame.n, fitting.numb_aparam)) if fitting.numb_aparam else None
    return Frame(frame.coord, frame.cell, frame.types, fparam, aparam)


def _apart(rng: np.random.Generator, basis: NDArray, n: int, closest: float = 1.2) -> NDArray:
    shifts = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), axis=-1).reshape(-1, 3) @ basis
    placed: list[NDArray] = []
    while len(placed) < n:
        trial = rng.random(3) @ basis
        gaps = [np.linalg.norm(trial - other + shifts, axis=1).min() for other in placed]
        if min(gaps, default=np.inf) > closest:
            placed.append(trial)
    return np.array(placed)


def stack(frames: list[Frame]) -> tuple[NDArray, NDArray | None, NDArray, NDArray | None, NDArray | None]:
    """The arguments of `Potential.evaluate` for frames of one shape."""

    def column(name: str) -> NDArray | None:
        values = [getattr(frame, name) for frame in frames]
        return None if values[0] is None else np.stack(values)

    return column("coord"), column("cell"), column("types"), column("fparam"), column("aparam")  # type: ignore[return-value]


def evaluate(potential: Potential, *frames: Frame) -> Prediction:
    return potential.evaluate(*stack(list(frames)))


def rotation(rng: np.random.Generator) -> NDArray:
    """A proper rotation, uniformly at random."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.sign(np.linalg.det(q))


def close(actual: Any, expected: Any, rtol: float, atol: float = 0.0) -> None:
    """Agreement relative to the largest expected number, the way errors of forces are spoken of."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max(initial=0.0)
    limit = rtol * np.abs(expected).max(initial=0.0) + atol
    assert error <= limit, f"largest difference {error:.3g}, allowed {limit:.3g}"
