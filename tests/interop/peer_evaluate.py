"""Energies of `NAME.npz` by the model `NAME.dp`, for all models of a folder. Runs in DeePMD-kit's venv."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from deepmd.infer import DeepPot

for model in sorted(Path(sys.argv[1]).glob("*.dp")):
    potential = DeepPot(str(model))
    frames = dict(np.load(model.with_suffix(".npz")))
    n_frames, n_atoms = frames["types"].shape
    energy, _, _, atom_energy, _ = potential.eval(
        frames["coord"].reshape(n_frames, -1),
        frames["cell"].reshape(n_frames, 9) if "cell" in frames else None,
        frames["types"][0],
        atomic=True,
        fparam=frames.get("fparam"),
        aparam=frames["aparam"].reshape(n_frames, -1) if "aparam" in frames else None,
    )
    np.savez(
        model.with_suffix(".answer.npz"),
        energy=energy.reshape(n_frames),
        atom_energy=atom_energy.reshape(n_frames, n_atoms),
        rcut=potential.get_rcut(),
        type_map=potential.get_type_map(),
    )
