"""Micro-batches with frames of several systems: `batch_size` `mixed:N`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from system_files import NAMES, make_arrays, write_system

from lockstep.data import DataSet, make_plan, named
from lockstep.errors import InputError
from lockstep.observe.lcurve import read_lcurve
from lockstep.tasks.energy.arrays import LABELS
from runs import dp, make_frames, tiny_input, write_frames, write_input

ARRAYS = named(LABELS, ["energy", "force"])


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    """Two periodic systems of 3 and 5 atoms, one without a cell, one without forces."""
    for name, natoms, labels in (
        ("a", 3, ("box", "energy", "force")),
        ("b", 5, ("box", "energy", "force")),
        ("c", 4, ("energy", "force")),
        ("d", 3, ("box", "energy")),
    ):
        arrays = make_arrays(4, natoms)
        write_system(
            tmp_path / name,
            [{key: arrays[key] for key in ("coord", *labels)}],
            [number % 2 for number in range(natoms)],
            nopbc="box" not in labels,
        )
    return DataSet([tmp_path / name for name in "abcd"], NAMES, ARRAYS)


def test_systems_that_are_alike_become_one(data: DataSet) -> None:
    plan = make_plan(data, "mixed:3", auto_prob="prob_sys_size")
    assert plan.dataset.n_frames.tolist() == [8, 4, 4]
    assert plan.batch_sizes.tolist() == [3, 3, 3]
    assert plan.dataset.natoms.tolist() == [5, 4, 3]
    assert plan.dataset.periodic.tolist() == [True, False, True]
    assert plan.dataset.present(2) == ("energy",)


def test_frames_are_padded_and_otherwise_what_they_were(data: DataSet) -> None:
    merged = make_plan(data, "mix:3", auto_prob="prob_sys_size").dataset
    batch = merged.read(0, [6, 1, 7])
    first, second = data.read(1, [2, 3]), data.read(0, [1])
    np.testing.assert_array_equal(batch.coord[[0, 2]], first.coord)
    np.testing.assert_array_equal(batch.coord[1, :3], second.coord[0])
    assert batch.types[1].tolist() == [0, 1, 0, -1, -1]
    np.testing.assert_array_equal(batch.labels["force"][1, :3], second.labels["force"][0])
    assert not batch.labels["force"][1, 3:].any()
    np.testing.assert_array_equal(batch.labels["energy"][[0, 2]], first.labels["energy"])
    assert batch.cell is not None
    np.testing.assert_array_equal(batch.cell[1], second.cell[0])  # type: ignore[index]
    assert batch.frames.tolist() == [6, 1, 7]
    np.testing.assert_array_equal(merged.compositions(0, [1, 6]), [[2, 1], [3, 2]])
    assert "a/set.000" in str(batch.refusal(1, "bad", ""))
    assert "frame 1 " in str(batch.refusal(1, "bad", ""))


def test_probabilities_of_systems_are_refused(data: DataSet) -> None:
    with pytest.raises(InputError, match="every frame once a pass"):
        make_plan(data, "mixed:2", (0.25, 0.25, 0.25, 0.25), auto_prob="prob_sys_size")


def test_it_trains_as_on_mixed_type_data_of_the_same_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = {"a": (0, 0, 1, 1), "b": (0, 1, 1, 0, 1, 0)}
    frames = {name: make_frames(3, types, seed=len(types)) for name, types in kinds.items()}
    for name, types in kinds.items():
        write_frames(tmp_path / name, frames[name], types, ("A", "B"))
    padded = {key: _padded(frames["a"][key], frames["b"][key]) for key in ("coord", "force")}
    padded |= {key: np.concatenate([frames[name][key] for name in kinds]) for key in ("energy", "box")}
    write_frames(tmp_path / "both", padded, [0] * 6, ("A", "B"))
    types = [[*kinds["a"], -1, -1]] * 3 + [[*kinds["b"]]] * 3
    np.save(tmp_path / "both/set.000/real_atom_types.npy", np.array(types))
    curves = []
    for systems, size in ((["a", "b"], "mixed:2"), (["both"], 2)):
        data = tiny_input(training__training_data={"systems": systems, "batch_size": size}, training__numb_steps=6)
        write_input(tmp_path, data)
        assert dp("train", "input.json", "-v", "WARNING") == 0
        curves.append(read_lcurve("lcurve.out"))
    for name, values in curves[0].items():
        np.testing.assert_array_equal(values, curves[1][name])


def _padded(small: np.ndarray, large: np.ndarray) -> np.ndarray:
    return np.concatenate([np.pad(small, ((0, 0), (0, large.shape[1] - small.shape[1]))), large])
