"""Small training runs for tests: data of a pair potential, a tiny model, and the command line in this process."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

COPPER = Path(__file__).resolve().parents[1] / "examples" / "copper" / "data"
_REACH, _DEPTH, _SIZE = 4.0, 0.8, 1.6

TINY: dict[str, Any] = {
    "model": {
        "type_map": ["A", "B"],
        "descriptor": {
            "type": "se_e2_a",
            "sel": [24, 24],
            "rcut": 4.0,
            "rcut_smth": 1.5,
            "neuron": [4, 8],
            "axis_neuron": 3,
            "type_one_side": True,
            "seed": 1,
        },
        "fitting_net": {"neuron": [8, 8], "seed": 2},
    },
    "learning_rate": {"type": "exp", "start_lr": 0.005, "stop_lr": 1e-4, "decay_steps": 5},
    "loss": {"type": "ener", "start_pref_e": 0.1, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
    "training": {
        "training_data": {"systems": ["train"], "batch_size": 1},
        "numb_steps": 12,
        "disp_freq": 2,
        "save_freq": 4,
        "seed": 3,
    },
}


def tiny_input(**changes: Any) -> dict[str, Any]:
    """The tiny input with some keys changed, dots written as double underscores; None takes a key out."""
    data = copy.deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        if value is None:
            section.pop(key, None)
        else:
            section[key] = value
    return data


def pair_energy(coord: np.ndarray, cell: np.ndarray | None, types: np.ndarray) -> dict[str, np.ndarray]:
    """Labels of one frame by a smooth pair potential that every test can trust: energy, force, virial, atom_ener."""
    n = len(coord)
    shifts = np.zeros((1, 3)) if cell is None else np.array([(a, b, c) for a in R for b in R for c in R]) @ cell
    delta = coord[None, :, None] + shifts - coord[:, None, None]
    r = np.linalg.norm(delta, axis=-1)
    inside = (r < _REACH) & (r > 1e-9)
    r = np.where(inside, r, _REACH)
    strength = _DEPTH * (1 + 0.5 * (types[:, None] + types[None, :]))[..., None]
    energy = np.where(inside, strength * np.exp(-r / _SIZE) * (1 - r / _REACH) ** 3, 0)
    slope = np.where(
        inside, energy * (-1 / _SIZE) - 3 * strength / _REACH * np.exp(-r / _SIZE) * (1 - r / _REACH) ** 2, 0
    )
    pull = slope[..., None] * delta / r[..., None]
    atom_ener = energy.sum(axis=(1, 2)) / 2
    return {
        "energy": atom_ener.sum(),
        "force": pull.sum(axis=(1, 2)).reshape(3 * n),
        "virial": -np.einsum("ijkx,ijky->xy", pull, delta).reshape(9) / 2,
        "atom_ener": atom_ener,
    }


R = (-1, 0, 1)


def make_frames(n_frames: int, types: Sequence[int], seed: int, periodic: bool = True) -> dict[str, np.ndarray]:
    """Frames of atoms scattered around the points of a grid, with labels."""
    rng = np.random.default_rng(seed)
    kinds = np.array(types)
    grid = np.array([(a, b, c) for a in range(3) for b in range(2) for c in range(2)], dtype=float)[: len(kinds)]
    frames: list[dict[str, np.ndarray]] = []
    for _ in range(n_frames):
        cell = np.diag([6.6, 5.0, 5.0]) * rng.uniform(0.95, 1.05) + rng.normal(0, 0.1, (3, 3)) if periodic else None
        coord = grid * [2.2, 2.5, 2.5] + rng.normal(0, 0.25, grid.shape)
        frame = {"coord": coord.reshape(-1), **pair_energy(coord, cell, kinds)}
        if cell is not None:
            frame["box"] = cell.reshape(9)
        frames.append(frame)
    return {name: np.array([frame[name] for frame in frames]) for name in frames[0]}


def write_frames(folder: Path, frames: dict[str, np.ndarray], types: Sequence[int], names: Sequence[str]) -> Path:
    """A deepmd/npy system of one set."""
    target = folder / "set.000"
    target.mkdir(parents=True)
    (folder / "type.raw").write_text("".join(f"{number}\n" for number in types))
    (folder / "type_map.raw").write_text("".join(f"{name}\n" for name in names))
    if "box" not in frames:
        (folder / "nopbc").touch()
    for name, values in frames.items():
        np.save(target / f"{name}.npy", values)
    return folder


def tiny_system(
    folder: Path, n_frames: int = 6, types: Sequence[int] = (0, 0, 1, 1, 0, 1), seed: int = 0, periodic: bool = True
) -> Path:
    """A small system of atoms A and B with energies, forces, virials and atomic energies."""
    return write_frames(folder, make_frames(n_frames, types, seed, periodic), types, ("A", "B"))


def write_input(folder: Path, data: dict[str, Any], name: str = "input.json") -> Path:
    """The input file of a run in `folder`."""
    path = folder / name
    path.write_text(json.dumps(data, indent=1))
    return path


def dp(*arguments: str) -> int:
    """The command line, in this process; leaves the logging of the test as it was."""
    from lockstep.cli.main import main

    logger = logging.getLogger("lockstep")
    level, handlers, propagate = logger.level, list(logger.handlers), logger.propagate
    try:
        return main(list(arguments))
    finally:
        logger.setLevel(level)
        logger.handlers[:], logger.propagate = handlers, propagate


SLOW_STEPS = """
import time
from lockstep.training.loop import Trainer
step = Trainer.step
Trainer.step = lambda self, number: (time.sleep(0.02), step(self, number))[1]
"""


def dp_process(*arguments: str, prelude: str = "", **options: Any) -> subprocess.Popen[str]:
    """The command line as a process of its own, after the statements of `prelude`."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "NUM_WORKERS": "1", **options.pop("env", {})}
    program = f"{prelude}\nimport sys\nfrom lockstep.cli.main import main\nsys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        **options,
    )


def folder_state(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its content (of links, where they lead)."""
    state: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            state[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            state[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return state
