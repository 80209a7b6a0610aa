"""Train and freeze small models with DeePMD-kit's PyTorch backend, and note what it computes from them.

    python make_pytorch_files.py FOLDER NAME     in a venv with deepmd-kit==3.2.0, torch and e3nn

Makes NAME.pt, NAME.pth and NAME.npz. It made `reference/pytorch/`, one process for each name.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = {
    "type": "se_e2_a",
    "sel": [24, 24],
    "rcut": 4.0,
    "rcut_smth": 1.5,
    "neuron": [3, 6],
    "axis_neuron": 2,
    "seed": 1,
}
RADIAL = {"type": "se_e2_r", "sel": [24, 24], "rcut": 3.0, "neuron": [3, 6], "seed": 1}
ATTEN = {"type": "dpa1", "sel": 30, "rcut": 4.0, "neuron": [3, 6], "axis_neuron": 2, "attn_layer": 0, "tebd_dim": 3}
SECOND = {**ATTEN, "type": "se_atten_v2", "rcut": 3.5, "use_econf_tebd": True, "use_tebd_bias": True}
DESCRIPTORS: dict[str, dict[str, Any]] = {
    "se_e2_a": {**PLAIN, "type_one_side": True},
    "hybrid": {"type": "hybrid", "list": [PLAIN, ATTEN, SECOND, RADIAL]},
}


def main(folder: Path, name: str) -> None:
    os.chdir(tempfile.mkdtemp())
    system = write_system(Path("train"))
    write_input(name)
    run = entry_point()
    run(["train", "input.json"])
    run(["freeze", "-c", f"{name}.pt", "-o", str(folder / f"{name}.pth")])
    (folder / f"{name}.pt").write_bytes(Path(f"{name}-3.pt").read_bytes())
    from deepmd.infer import DeepPot

    coord, cell, types = (system[key] for key in ("coord", "cell", "types"))
    energy, force, virial = DeepPot(str(folder / f"{name}.pth")).eval(coord, cell, types[0])
    answers = {"energy": energy[:, 0], "force": force, "virial": virial.reshape(-1, 3, 3)}
    np.savez_compressed(folder / f"{name}.npz", **system, **answers)


def entry_point() -> Any:
    import deepmd.env

    # Its compiled operators load with one version of PyTorch only, and nothing here needs them.
    deepmd.env.SHARED_LIB_DIR = Path(tempfile.mkdtemp())
    from deepmd.pt.entrypoints.main import main as run

    return run


def write_system(folder: Path) -> dict[str, np.ndarray]:
    """Two frames of six atoms, with labels that mean nothing."""
    rng = np.random.default_rng(4)
    cell = np.diag([5.2, 5.4, 5.6])
    corners = np.stack(np.meshgrid(*[[0.25, 0.75]] * 3, indexing="ij"), axis=-1).reshape(-1, 3)[:6]
    coord = (corners + rng.uniform(-0.12, 0.12, (2, 6, 3))) @ cell
    types = np.array([[0, 1, 1, 0, 1, 1]] * 2)
    (folder / "set.000").mkdir(parents=True)
    labels = {
        "coord": coord,
        "box": np.stack([cell] * 2),
        "energy": rng.normal(size=2),
        "force": rng.normal(size=coord.shape),
    }
    for key, value in labels.items():
        np.save(folder / "set.000" / f"{key}.npy", value.reshape(2, -1) if value.ndim > 1 else value)
    (folder / "type.raw").write_text("\n".join(map(str, types[0])))
    (folder / "type_map.raw").write_text("O\nH\n")
    return {"coord": coord, "cell": labels["box"], "types": types}


def write_input(name: str) -> None:
    config = {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": DESCRIPTORS[name],
            "fitting_net": {"neuron": [5, 5], "seed": 2},
        },
        "learning_rate": {"type": "exp", "start_lr": 0.005, "stop_lr": 1e-4, "decay_steps": 5},
        "loss": {"type": "ener", "start_pref_e": 0.1, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
        "training": {
            "training_data": {"systems": ["train"], "batch_size": 1},
            "numb_steps": 3,
            "save_freq": 3,
            "seed": 3,
            "save_ckpt": name,
        },
    }
    Path("input.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2])
