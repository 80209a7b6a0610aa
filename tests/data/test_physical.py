"""Frames that no matter can be in are refused by file, frame and atoms, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import DP
from lockstep.data.physical import bad_cell, far_atom
from lockstep.errors import UserError
from lockstep.geometry import Cutoff, SamePlaceError, find_pairs
from lockstep.interop.deepmd import save_dp
from potentials import random_potential
from runs import dp, tiny_input, tiny_system, write_input

FRAME = 4


def changed(name: str, change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    """Change frame 4 of one of a system's arrays."""

    def spoil(system: Path) -> None:
        file = system / "set.000" / f"{name}.npy"
        values = np.load(file)
        change(values[FRAME])
        np.save(file, values)

    return spoil


def same_place(frame: np.ndarray) -> None:
    frame[9:12] = frame[3:6]


def far_away(frame: np.ndarray) -> None:
    frame[8] = -1e15


def no_room(frame: np.ndarray) -> None:
    frame[:] = np.diag([6.0, 1e-12, 5.0]).ravel()


def skewed(frame: np.ndarray) -> None:
    frame[:] = np.array([[10.0, 0, 0], [10.0, 1e-3, 0], [0, 0, 10.0]]).ravel()


CASES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "two atoms at one place": (changed("coord", same_place), ("coord.npy", "atoms 1 and 3 are 0 Angstrom apart")),
    "an atom far away": (changed("coord", far_away), ("coord.npy", "atom 2 is at", "1000000000000000")),
    "a lattice vector of nothing": (changed("box", no_room), ("box.npy", "1e-12")),
    "a cell without room": (changed("box", skewed), ("box.npy", "Angstrom thick")),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def words(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A folder with good data, and with bad data of this case, whose refusal has these words."""
    spoil, words = CASES[request.param]
    tiny_system(tmp_path / "train")
    spoil(tiny_system(tmp_path / "bad", seed=5))
    monkeypatch.chdir(tmp_path)
    return (*words, "bad/set.000", "frame 4 (counted from 0)", "remedy")


def refused(words: tuple[str, ...], error: str, *arguments: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp(*arguments) == 2
    output = capfd.readouterr().err
    assert error in output
    assert "Traceback" not in output
    assert not [word for word in words if word not in output], output


@pytest.mark.parametrize("skip", [False, True])
def test_in_training_data(words: tuple[str, ...], skip: bool, capfd: pytest.CaptureFixture[str]) -> None:
    write_input(Path(), tiny_input(training__training_data__systems=["train", "bad"], training__numb_steps=60))
    refused(words, "dp train", "train", "input.json", *(["--skip-neighbor-stat"] * skip), capfd=capfd)


def test_in_validation_data(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    write_input(Path(), tiny_input(training__validation_data={"systems": ["bad"], "numb_btch": 1}))
    refused(words, "dp train", "train", "input.json", capfd=capfd)
    assert not Path("lcurve.out").exists()


def test_in_data_to_test_and_to_compare(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    write_input(Path(), tiny_input(training__numb_steps=1))
    assert dp("train", "input.json") == 0
    assert dp("freeze", "-o", "model.dp") == 0
    capfd.readouterr()
    refused(words, "dp test", "test", "-m", "model.dp", "-s", "bad", capfd=capfd)
    refused(words, "dp model-devi", "model-devi", "-m", "model.dp", "model.dp", "-s", "bad", capfd=capfd)
    refused(words[:2], "dp neighbor-stat", "neighbor-stat", "-s", "bad", "-r", "4", "-t", "A", "B", capfd=capfd)


def calculator(tmp_path: Path) -> DP:
    save_dp(random_potential(), tmp_path / "model.dp")
    return DP(tmp_path / "model.dp", type_dict={"H": 0, "O": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": [[0, 0, 0], [1, 1, 1], [1, 1, 1]]}, "atoms 1 and 2 are 0 Angstrom apart"),
        ({"positions": [[0, 0, 0], [1, 1, 1], [7, 1, 1]]}, "atoms 1 and 2 are 0 Angstrom apart"),
        ({"positions": [[0, 0, 0], [1, 1, 1e15], [2, 1, 1]]}, "atom 1 is at"),
        ({"cell": [6, 6, 1e-12]}, "the cell has no room"),
    ],
)
def test_in_the_calculator(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    from ase import Atoms

    atoms = Atoms("HOH", **{"positions": [[0, 0, 0], [1, 1, 1], [2, 2, 2]], "cell": [6, 6, 6], "pbc": True, **change})
    atoms.calc = calculator(tmp_path)
    with pytest.raises(UserError, match=message):
        atoms.get_potential_energy()


def test_an_atom_and_its_own_image() -> None:
    cutoff = Cutoff(4.0, 0.5, (50,))
    with pytest.raises(SamePlaceError, match="atom 0 and its own image"):
        find_pairs(np.zeros((1, 3)), np.diag([5.0, 5.0, 5e-4]), np.zeros(1, dtype=int), cutoff)


def test_padding_atoms_may_share_a_place() -> None:
    find_pairs(np.zeros((3, 3)), None, np.array([0, -1, -1]), Cutoff(4.0, 0.5, (50,)))


def test_what_matter_can_be_in_is_accepted() -> None:
    assert far_atom(np.array([[[1e5, -1e5, 0.0]]])) is None
    assert far_atom(np.zeros((1, 0, 3))) is None
    assert bad_cell(np.array([np.diag([0.8, 0.8, 0.8]), [[3, 0, 0], [2.9, 0.6, 0], [0, 0, 400]]])) is None
