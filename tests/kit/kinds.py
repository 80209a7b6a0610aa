"""Small inputs of our own, one for each kind of model that DeePMD-kit builds, with data to train it on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runs import tiny_input, tiny_system, write_input

TYPES = ["A", "B"]
ATTENTION = {
    "type": "dpa1",
    "sel": 12,
    "rcut": 4.0,
    "rcut_smth": 1.5,
    "neuron": [4, 8],
    "axis_neuron": 3,
    "attn": 8,
    "attn_layer": 1,
    "tebd_dim": 4,
    "seed": 1,
}
DPA2 = {
    "type": "dpa2",
    "repinit": {
        "rcut": 4.0,
        "rcut_smth": 1.5,
        "nsel": 12,
        "neuron": [4, 8],
        "axis_neuron": 2,
        "tebd_dim": 4,
        "three_body_neuron": [2, 4],
        "three_body_rcut": 3.0,
        "three_body_rcut_smth": 1.5,
        "three_body_sel": 8,
        "use_three_body": True,
    },
    "repformer": {"rcut": 3.0, "rcut_smth": 1.5, "nsel": 8, "nlayers": 1, "g1_dim": 8, "g2_dim": 4, "axis_neuron": 2},
    "seed": 1,
}
DPA3 = {
    "type": "dpa3",
    "repflow": {
        "n_dim": 8,
        "e_dim": 6,
        "a_dim": 4,
        "nlayers": 1,
        "e_rcut": 4.0,
        "e_rcut_smth": 2.0,
        "e_sel": 12,
        "a_rcut": 3.0,
        "a_rcut_smth": 2.0,
        "a_sel": 6,
        "axis_neuron": 2,
    },
    "seed": 1,
}
DPA4 = {
    "type": "dpa4",
    "type_map": TYPES,
    "descriptor": {
        "type": "dpa4",
        "sel": 12,
        "rcut": 4.0,
        "channels": 8,
        "n_radial": 4,
        "lmax": 1,
        "n_blocks": 1,
        "seed": 1,
        "precision": "float64",
    },
    "fitting_net": {"type": "dpa4_ener", "neuron": [8], "seed": 2, "precision": "float64"},
}
SE_E3 = {"type": "se_e3", "sel": [8, 8], "rcut": 4.0, "rcut_smth": 1.5, "neuron": [2, 4], "seed": 1}
SE_E3_TEBD = {
    "type": "se_e3_tebd",
    "sel": 8,
    "rcut": 3.0,
    "rcut_smth": 1.5,
    "neuron": [2, 4],
    "tebd_dim": 4,
    "seed": 1,
}
SE_A = {
    "type": "se_e2_a",
    "sel": [12, 12],
    "rcut": 4.0,
    "rcut_smth": 1.5,
    "neuron": [4, 8],
    "axis_neuron": 3,
    "seed": 1,
}
FITTING = {"neuron": [8, 8], "seed": 2}


def _standard(descriptor: dict[str, Any], fitting: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type_map": TYPES, "descriptor": descriptor, "fitting_net": fitting or FITTING, **more}


@dataclass(frozen=True)
class Kind:
    """A model section, its loss, and arrays that the data need beyond energies and forces."""

    model: dict[str, Any]
    loss: dict[str, Any] = field(default_factory=lambda: tiny_input()["loss"])
    arrays: dict[str, Callable[[int, int, np.random.Generator], np.ndarray]] = field(default_factory=dict)
    optimizer: dict[str, Any] | None = None


def _atoms(width: int) -> Callable[[int, int, np.random.Generator], np.ndarray]:
    return lambda frames, atoms, draw: draw.normal(size=(frames, atoms * width))


def _frame(width: int) -> Callable[[int, int, np.random.Generator], np.ndarray]:
    return lambda frames, atoms, draw: draw.normal(size=(frames, width))


def _hessian(frames: int, atoms: int, draw: np.random.Generator) -> np.ndarray:
    half = draw.normal(size=(frames, 3 * atoms, 3 * atoms))
    return (half + half.transpose(0, 2, 1)).reshape(frames, -1)


_SPIN_LOSS = {
    "type": "ener_spin",
    **{f"{end}_pref_{term}": 1.0 for end in ("start", "limit") for term in ("e", "fr", "fm")},
}
_TENSOR = {"type": "tensor", "pref": 1.0, "pref_atomic": 1.0}

KINDS: dict[str, Kind] = {
    "se_e3": Kind(_standard(SE_E3)),
    "se_e3_tebd": Kind(_standard(SE_E3_TEBD)),
    "dpa1": Kind(_standard(ATTENTION)),
    "dpa2": Kind(_standard(DPA2)),
    "dpa3": Kind(_standard(DPA3)),
    "dpa4": Kind(DPA4),
    "hybrid": Kind(_standard({"type": "hybrid", "list": [SE_A, SE_E3]})),
    "linear": Kind(
        {
            "type": "linear_ener",
            "type_map": TYPES,
            "weights": "mean",
            "models": [_standard(ATTENTION), _standard({**ATTENTION, "seed": 5})],
        }
    ),
    "hessian": Kind(
        _standard(SE_A),
        {**tiny_input()["loss"], "start_pref_h": 1.0, "limit_pref_h": 1.0},
        {"hessian": _hessian},
    ),
    "dos": Kind(
        _standard(SE_A, {**FITTING, "type": "dos", "numb_dos": 5}),
        {"type": "dos", "start_pref_dos": 1.0, "limit_pref_dos": 1.0, "start_pref_ados": 1.0, "limit_pref_ados": 1.0},
        {"dos": _frame(5), "atom_dos": _atoms(5)},
    ),
    "dipole": Kind(
        _standard(SE_A, {**FITTING, "type": "dipole"}), _TENSOR, {"dipole": _frame(3), "atomic_dipole": _atoms(3)}
    ),
    "dipole of some atoms": Kind(
        _standard(SE_A, {**FITTING, "type": "dipole", "sel_type": [0]}),
        {"type": "tensor", "pref": 0.0, "pref_atomic": 1.0},
        {"atomic_dipole": lambda frames, atoms, draw: draw.normal(size=(frames, 3 * atoms // 2))},
    ),
    "polar": Kind(
        _standard(SE_A, {**FITTING, "type": "polar"}),
        {"type": "tensor", "pref": 1.0, "pref_atomic": 0.0},
        {"polarizability": _frame(9)},
    ),
    "property": Kind(
        _standard(ATTENTION, {**FITTING, "type": "property", "task_dim": 2, "property_name": "gap"}),
        {"type": "property", "metric": ["mae", "rmse"], "loss_func": "smooth_mae", "beta": 1.0},
        {"gap": _frame(2)},
    ),
    "population": Kind(
        _standard(DPA3, {**FITTING, "type": "population"}),
        {
            "type": "population",
            **{f"{end}_pref_{term}": 1.0 for end in ("start", "limit") for term in ("spin", "pop")},
            "loss_func": "mae",
            "metric": ["mae"],
        },
        {"atomic_population": _atoms(2)},
    ),
    "zbl": Kind(_standard(ATTENTION, use_srtab="table.txt", smin_alpha=0.1, sw_rmin=0.8, sw_rmax=1.0)),
    "generalized force": Kind(
        _standard(SE_A),
        {**tiny_input()["loss"], "start_pref_gf": 1.0, "limit_pref_gf": 1.0, "numb_generalized_coord": 2},
        {"drdq": _atoms(6)},
    ),
    "aparam as mask": Kind(
        _standard(SE_A, {**FITTING, "numb_aparam": 1, "use_aparam_as_mask": True}),
        arrays={"aparam": lambda frames, atoms, draw: np.ones((frames, atoms))},
    ),
    "spin": Kind(
        _standard(SE_A, spin={"use_spin": [True, False], "virtual_scale": [0.3]}),
        _SPIN_LOSS,
        {"spin": _atoms(3), "force_mag": _atoms(3)},
    ),
}


def write_table(path: Path) -> None:
    """A repulsive pair potential for each two of the types, by distance."""
    distance = np.arange(1, 401) * 0.01
    energy = np.exp(-distance) / distance
    np.savetxt(path, np.stack([distance, energy, 1.5 * energy, 2 * energy], axis=1))


def kit_input(name: str, folder: Path, frames: int = 6, **changes: Any) -> dict[str, Any]:
    """Writes the data and the input file of a kind; gives the input."""
    kind = KINDS[name]
    system = tiny_system(folder / "train", n_frames=frames)
    atoms = len(np.loadtxt(system / "type.raw", ndmin=1))
    coord = np.load(system / "set.000" / "coord.npy")
    draw = np.random.default_rng(7)
    for array, make in kind.arrays.items():
        np.save(system / "set.000" / f"{array}.npy", make(len(coord), atoms, draw))
    if "use_srtab" in kind.model:
        write_table(folder / kind.model["use_srtab"])
    data = tiny_input(**changes)
    data["model"], data["loss"] = copy.deepcopy(kind.model), copy.deepcopy(kind.loss)
    if kind.optimizer:
        data["optimizer"] = kind.optimizer
    write_input(folder, data)
    return data
