"""What dpdata writes is what we read, in all three of its formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from system_files import CELL

from lockstep.data import DataSet
from lockstep.tasks.energy.arrays import LABELS

dpdata = pytest.importorskip("dpdata")


@pytest.fixture
def system() -> Any:
    rng = np.random.default_rng(5)
    data = {
        "atom_names": ["O", "H"],
        "atom_numbs": [1, 2],
        "atom_types": np.array([0, 1, 1]),
        "orig": np.zeros(3),
        "cells": np.tile(CELL, (6, 1, 1)),
        "coords": rng.uniform(0, 6, (6, 3, 3)),
        "energies": rng.normal(0, 1, 6),
        "forces": rng.normal(0, 1, (6, 3, 3)),
        "virials": rng.normal(0, 1, (6, 3, 3)),
    }
    return dpdata.LabeledSystem(data=data)


@pytest.mark.parametrize("kind", ["npy", "hdf5", "npy/mixed"])
def test_frames_written_by_dpdata(tmp_path: Path, system: Any, kind: str) -> None:
    target = str(tmp_path / ("data.hdf5" if kind == "hdf5" else "data"))
    if kind == "npy":
        system.to_deepmd_npy(target, set_size=4, prec=np.float64)
    elif kind == "hdf5":
        system.to_deepmd_hdf5(target, set_size=4, comp_prec=np.float64)
    else:
        dpdata.MultiSystems(system).to(f"deepmd/{kind}", target, set_size=4, prec=np.float64)
    data = DataSet(target, ["H", "O"], LABELS)
    assert data.n_frames.tolist() == [6]
    assert bool(data.mixed[0]) == (kind == "npy/mixed")
    batch = data.read(0, np.arange(6))
    order = np.argsort(-batch.types[0], kind="stable")  # dpdata may sort the atoms
    assert batch.types[:, order].tolist() == [[1, 0, 0]] * 6
    np.testing.assert_allclose(batch.coord[:, order], system["coords"], rtol=1e-12)
    np.testing.assert_allclose(batch.labels["force"][:, order], system["forces"], rtol=1e-12)
    np.testing.assert_allclose(batch.labels["energy"], system["energies"], rtol=1e-12)
    np.testing.assert_allclose(batch.labels["virial"], system["virials"], rtol=1e-12)
    assert batch.cell is not None
    np.testing.assert_allclose(batch.cell, system["cells"], rtol=1e-12)
