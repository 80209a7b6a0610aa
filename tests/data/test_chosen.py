"""Frames that are left out: those with atoms too close together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from system_files import NAMES, make_arrays, simple_system, write_system

from lockstep.data import ChosenDataSet, DataSet, named
from lockstep.tasks.energy.arrays import LABELS
from runs import dp, tiny_input, tiny_system, write_input

ARRAYS = named(LABELS, ["energy", "force"])


def test_the_other_frames_are_what_they_were(tmp_path: Path) -> None:
    for number in range(3):
        simple_system(tmp_path / str(number), n_frames=4, natoms=3 + number, seed=number)
    source = DataSet(tmp_path, NAMES, ARRAYS)
    data = ChosenDataSet(source, [np.array([1, 3]), np.zeros(0, int), np.array([0, 2, 3])])
    assert (data.n_frames.tolist(), data.natoms.tolist(), data.total_frames) == ([2, 3], [3, 5], 5)
    batch, before = data.read(1, [2, 0]), source.read(2, [3, 0])
    np.testing.assert_array_equal(batch.coord, before.coord)
    np.testing.assert_array_equal(batch.labels["force"], before.labels["force"])
    assert batch.frames.tolist() == [4, 2]
    np.testing.assert_array_equal(data.values(0, [1], "energy"), source.values(0, [3], "energy"))
    assert data.take([1]).n_frames.tolist() == [3]


def test_frames_with_close_atoms_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tiny_system(tmp_path / "train") / "set.000/coord.npy"
    coord = np.load(file)
    coord[4, 3:6] = coord[4, :3] + [0.1, 0, 0]
    np.save(file, coord)
    write_input(tmp_path, tiny_input(training__training_data__min_pair_dist=0.3, training__numb_steps=5))
    assert dp("train", "input.json") == 0
    told = capfd.readouterr().err
    assert "min_pair_dist = 0.3 leaves out 1 of 6 frames" in told
    assert "5 frames, 6 to 6 atoms" in told
    write_input(tmp_path, tiny_input(training__training_data__min_pair_dist=20.0))
    assert dp("train", "input.json") == 2
    assert "leaves out all frames" in capfd.readouterr().err


def test_close_atoms_are_found_across_the_cell(tmp_path: Path) -> None:
    from lockstep.geometry import has_close_atoms

    arrays = {name: make_arrays(2, 3)[name] for name in ("coord", "box")}
    arrays["box"] = np.tile(np.eye(3).reshape(-1) * 8, (2, 1))
    arrays["coord"] = np.array([[0.0, 0, 0, 7.9, 0, 0, 4, 4, 4], [0, 0, 0, 4, 0, 0, 4, 4, 4]])
    write_system(tmp_path / "a", [arrays], [0, 1, 1])
    assert has_close_atoms(DataSet(tmp_path / "a", NAMES).read(0, [0, 1]), 0.5).tolist() == [True, False]
