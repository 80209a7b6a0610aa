"""`dp neighbor-stat` against counting by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def write_molecule(path: Path, coord: list[list[float]], types: list[int], cell: float | None = None) -> None:
    (path / "set.000").mkdir(parents=True)
    np.save(path / "set.000" / "coord.npy", np.reshape(coord, (1, -1)))
    np.savetxt(path / "type.raw", types, fmt="%d")
    (path / "type_map.raw").write_text("O H")
    if cell is None:
        (path / "nopbc").touch()
    else:
        np.save(path / "set.000" / "box.npy", np.reshape(np.eye(3) * cell, (1, 9)))


WATER = [[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [-0.3, 0.95, 0.0]]


def test_counts_and_distance_of_a_molecule(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", WATER, [0, 1, 1])
    result = dp("neighbor-stat", "-s", "data", "-r", "6.0", "-t", "O", "H")
    assert "min_nbor_dist: 0.900000" in result.err
    assert "max_nbor_size: [1 2]" in result.err


def test_images_are_neighbours(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", [[0.0, 0.0, 0.0]], [0], cell=2.0)
    result = dp("neighbor-stat", "-s", "data", "-r", "2.5", "-t", "O", "H")
    assert "min_nbor_dist: 2.000000" in result.err
    assert "max_nbor_size: [6 0]" in result.err


def test_types_are_those_of_the_data_unless_given(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", WATER, [0, 1, 1])
    assert "type_map: ['O', 'H']" in dp("neighbor-stat", "-s", "data", "-r", "6.0").err


def test_all_types_together(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", WATER, [0, 1, 1])
    assert "max_nbor_size: [2]" in dp("neighbor-stat", "-s", "data", "-r", "6.0", "--mixed-type").err


def test_atoms_in_one_place_are_an_error(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0, 1])
    result = dp("neighbor-stat", "-s", "data", "-r", "6.0")
    assert result.code == 2
    assert "data" in result.err


def test_nobody_near(dp: Callable, tmp_path: Path) -> None:
    write_molecule(tmp_path / "data", [[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]], [0, 1])
    result = dp("neighbor-stat", "-s", "data", "-r", "6.0")
    assert result.code == 0
    assert "no two atoms are within 6 Angstrom" in result.err


@pytest.mark.parametrize("rcut", ["0", "-1", "wide", "inf", "nan"])
def test_a_cutoff_is_a_positive_number(dp: Callable, rcut: str) -> None:
    assert dp("neighbor-stat", "-r", rcut).code == 2
