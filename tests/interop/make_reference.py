"""Write models with DeePMD-kit, and what it computes from them. Runs in a venv with DeePMD-kit, not with this program.

    python make_reference.py FOLDER              energies by its NumPy backend (deepmd-kit==3.2.0 only)
    python make_reference.py FOLDER --pytorch    forces and virials too, by its PyTorch backend (torch, e3nn, mpich)

The second way made `reference/`.
"""

from __future__ import annotations

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

DESCRIPTOR = {
    "type": "se_e2_a",
    "sel": [10, 16],
    "rcut": 4.0,
    "rcut_smth": 1.0,
    "neuron": [4, 8],
    "axis_neuron": 3,
    "type_one_side": True,
    "seed": 1,
}
FITTING = {"type": "ener", "neuron": [8, 8], "resnet_dt": True, "seed": 2}

RADIAL = {"type": "se_e2_r", "axis_neuron": None}
ATTEN = {"type": "se_atten", "sel": 26, "attn_layer": 0, "tebd_dim": 3, "type_one_side": False, "set_davg_zero": True}


def hybrid(*members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "hybrid", "list": [section(member) for member in members]}


def section(changes: dict[str, Any]) -> dict[str, Any]:
    """A descriptor: the plain one with changes."""
    if "list" in changes:
        return changes
    return {key: value for key, value in {**DESCRIPTOR, **changes}.items() if value is not None}


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one_side": ({"resnet_dt": True}, {}),
    "two_side": ({"type_one_side": False, "neuron": [3, 6, 6]}, {"resnet_dt": False}),
    "exclude": ({"type_one_side": False, "exclude_types": [[0, 0], [1, 0]]}, {}),
    "env_protection": ({"env_protection": 0.3, "activation_function": "gelu"}, {"activation_function": "silu"}),
    # Too small for one type, enough in sum: this DeePMD-kit first keeps the nearest sum(sel) of all types together.
    "sel_too_small": (
        {"sel": [2, 20], "activation_function": "silut:3.0"},
        {"activation_function": "silut:1.5", "neuron": [5, 7]},
    ),
    "parameters": ({}, {"numb_fparam": 2, "numb_aparam": 3}),
    "atom_ener": ({}, {"atom_ener": [-1.5, None], "numb_fparam": 1}),
    "float32": ({"precision": "float32"}, {"precision": "float32"}),
    "radial": ({**RADIAL, "resnet_dt": True}, {}),
    "concat": (ATTEN, {"numb_fparam": 1}),
    "concat_mean": ({**ATTEN, "set_davg_zero": False, "use_tebd_bias": True, "type_one_side": True}, {}),
    "strip": ({**ATTEN, "tebd_input_mode": "strip", "exclude_types": [[0, 1]]}, {"atom_ener": [-1.5, None]}),
    "smooth": ({**ATTEN, "tebd_input_mode": "strip", "smooth_type_embedding": True, "use_econf_tebd": True}, {}),
    "second": ({**ATTEN, "type": "se_atten_v2", "concat_output_tebd": False}, {}),
    "hybrid": (hybrid({}, {**RADIAL, "rcut": 3.1, "sel": [6, 9]}), {}),
    "hybrid_mixed": (hybrid(ATTEN, {"rcut": 3.1}, {**ATTEN, "type": "se_atten_v2", "rcut": 3.4}), {}),
}

CELLS = {
    "cubic": np.diag([5.2, 5.2, 5.2]),
    "triclinic": np.array([[5.4, 0.0, 0.0], [1.9, 5.1, 0.0], [-1.3, 1.7, 5.6]]),
    "nopbc": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pytorch", action="store_true")
    arguments = parser.parse_args()
    evaluate = evaluate_pytorch if arguments.pytorch else evaluate_numpy
    from deepmd.dpmodel.utils.serialization import save_dp_model

    for name, (descriptor, fitting) in MODELS.items():
        config = {
            "type_map": ["O", "H"],
            "descriptor": section(descriptor),
            "fitting_net": {**FITTING, **fitting},
        }
        model = random_model(config)
        save_dp_model(str(arguments.folder / f"{name}.dp"), {"model": model, "model_def_script": config})
        answers: dict[str, np.ndarray] = {}
        for geometry, cell in CELLS.items():
            frames = random_frames(cell, config["fitting_net"])
            results = {**frames, **evaluate(model, frames)}
            answers |= {f"{geometry}_{key}": value for key, value in results.items()}
        np.savez_compressed(arguments.folder / f"{name}.npz", **answers)


def random_model(config: dict[str, Any]) -> dict[str, Any]:
    """A serialized model with random weights, statistics and biases."""
    from deepmd.dpmodel.model.model import get_model

    rng = np.random.default_rng(3)
    model = get_model(config).serialize()
    for part in model["descriptor"].get("list", [model["descriptor"]]):
        statistics = part["@variables"]
        if not part["set_davg_zero"]:
            statistics["davg"][..., 0] = rng.uniform(0.05, 0.15, (2, 1))
        statistics["dstd"][..., 0] = rng.uniform(0.04, 0.1, (2, 1))
        statistics["dstd"][..., 1:] = rng.uniform(0.04, 0.1, (2, 1, 1))
    model["@variables"]["out_bias"] = rng.normal(size=(1, 2, 1))
    parameters = model["fitting"]["@variables"]
    for key, draw in (("avg", rng.normal), ("inv_std", rng.lognormal)):
        for kind in ("fparam", "aparam"):
            if parameters[f"{kind}_{key}"] is not None:
                parameters[f"{kind}_{key}"] = draw(size=parameters[f"{kind}_{key}"].shape)
    return model


def random_frames(cell: np.ndarray | None, fitting: dict[str, Any]) -> dict[str, np.ndarray]:
    """Two frames of six atoms, none closer than an Angstrom."""
    rng = np.random.default_rng(4)
    basis = np.diag([4.5, 4.5, 4.5]) if cell is None else cell
    corners = np.stack(np.meshgrid(*[[0.25, 0.75]] * 3, indexing="ij"), axis=-1).reshape(-1, 3)[:6]
    coord = (corners + rng.uniform(-0.12, 0.12, (2, 6, 3))) @ basis
    frames = {"coord": coord, "types": np.array([[0, 1, 1, 0, 1, 1]] * 2)}
    if cell is not None:
        frames["cell"] = np.stack([cell, cell * 1.05])
    for key, shape in (("fparam", (2,)), ("aparam", (2, 6))):
        width = fitting.get(f"numb_{key}", 0)
        if width:
            frames[key] = rng.normal(size=(*shape, width))
    return frames


def evaluate_numpy(model: dict[str, Any], frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from deepmd.dpmodel.model.base_model import BaseModel

    answer = BaseModel.deserialize(model)(
        frames["coord"],
        frames["types"],
        box=frames.get("cell"),
        fparam=frames.get("fparam"),
        aparam=frames.get("aparam"),
    )
    return {"energy": answer["energy"][:, 0], "atom_energy": answer["atom_energy"][..., 0]}


def evaluate_pytorch(model: dict[str, Any], frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    # DeePMD-kit's compiled operators load with one version of PyTorch only, and nothing here needs them.
    stand_in = types.ModuleType("deepmd.pt.cxx_op")
    stand_in.ENABLE_CUSTOMIZED_OP = False  # type: ignore[attr-defined]
    sys.modules.setdefault("deepmd.pt.cxx_op", stand_in)
    import torch
    from deepmd.pt.model.model import BaseModel

    tensors = {key: torch.from_numpy(value) for key, value in frames.items()}
    answer = BaseModel.deserialize(model)(
        tensors["coord"].requires_grad_(),
        tensors["types"],
        box=tensors.get("cell"),
        fparam=tensors.get("fparam"),
        aparam=tensors.get("aparam"),
    )
    arrays = {key: answer[key].detach().numpy() for key in ("energy", "atom_energy", "force", "virial")}
    return {
        "energy": arrays["energy"][:, 0],
        "atom_energy": arrays["atom_energy"][..., 0],
        "force": arrays["force"],
        "virial": arrays["virial"].reshape(-1, 3, 3),
    }


if __name__ == "__main__":
    main()
