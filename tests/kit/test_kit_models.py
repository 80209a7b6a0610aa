"""What comes after training, for models of DeePMD-kit's: freeze, test, show, model-devi, the ASE calculator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kinds import TYPES, kit_input

from runs import dp, tiny_input, tiny_system, write_input


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of DPA-1 with attention, and two of a native model."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        kit_input("dpa1", folder, training__numb_steps=2)
        assert dp("train", "input.json") == 0
        assert dp("freeze", "-o", "model.dp") == 0
        assert dp("freeze", "-o", "model.pth") == 0
        (folder / "native").mkdir()
        patch.chdir(folder / "native")
        tiny_system(folder / "native" / "train")
        write_input(folder / "native", tiny_input(training__numb_steps=2))
        assert dp("train", "input.json") == 0
        assert dp("freeze", "-o", "model.dp") == 0
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as it may become another program."""
    line = [sys.executable, "-m", "lockstep.cli.main", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=250)


def first_frame(model: str) -> tuple[float, np.ndarray]:
    """Energy and forces of the first training frame, of two types."""
    from ase import Atoms

    from lockstep import DP

    coord = np.load("train/set.000/coord.npy")[0].reshape(-1, 3)
    cell = np.load("train/set.000/box.npy")[0].reshape(3, 3)
    numbers = np.loadtxt("train/type.raw", dtype=int)
    atoms = Atoms(["H" if number == 0 else "He" for number in numbers], coord, cell=cell, pbc=True)
    atoms.calc = DP(model, type_dict={"H": 0, "He": 1})
    return atoms.get_potential_energy(), atoms.get_forces()


def test_all_files_of_a_model_are_the_same_model(here: Path) -> None:
    found = [first_frame(model) for model in ("model.ckpt", "model.dp", "model.pth")]
    for energy, forces in found[1:]:
        assert energy == pytest.approx(found[0][0], abs=1e-10)
        np.testing.assert_allclose(forces, found[0][1], atol=1e-10)


@pytest.mark.parametrize("one_sided", [True, False])
def test_se_e2_r_is_another_model_there_unless_it_is_one_sided(
    one_sided: bool, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_system(folder / "train")
    descriptor = {"type": "se_e2_r", "sel": "auto", "rcut": 4.0, "neuron": [4, 8], "type_one_side": one_sided}
    write_input(folder, tiny_input(model__descriptor=descriptor, training__numb_steps=2))
    assert dp("train", "input.json") == dp("freeze", "-o", "model.dp") == 0
    assert dp("freeze", "-o", "model.pth") == (0 if one_sided else 2)
    assert ("--output = 'model.pth': se_e2_r with type_one_side = false" in capfd.readouterr().err) == (not one_sided)
    done = command("convert-backend", "model.dp", "converted.pth")
    assert done.returncode == 0, done.stderr
    assert (abs(first_frame("model.dp")[0] - first_frame("converted.pth")[0]) < 1e-10) == one_sided


@pytest.mark.parametrize("model", ["model.ckpt", "model.dp", "model.pth"])
def test_dp_test_works(model: str, here: Path) -> None:
    done = command("test", "-m", model, "-s", "train", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "evaluated by DeePMD-kit" in done.stderr
    assert "Force  RMSE" in done.stderr


def test_dp_show_works(here: Path) -> None:
    done = command("show", "model.ckpt", "type-map", "descriptor")
    assert done.returncode == 0, done.stderr
    assert str(TYPES) in done.stderr


def test_model_deviation_between_a_foreign_and_a_native_model(here: Path) -> None:
    done = command("model-devi", "-m", "model.dp", "native/model.ckpt", "-s", "train", "-o", "devi.out")
    assert done.returncode == 0, done.stderr
    assert len(np.loadtxt("devi.out")) == 6


def test_convert_backend_right_after_freeze(here: Path) -> None:
    done = command("convert-backend", "native/model.dp", "converted.pth")
    assert done.returncode == 0, done.stderr
    assert "handed over" in done.stderr
    assert Path("converted.pth").stat().st_size > 0
    tested = command("test", "-m", "converted.pth", "-s", "train", "-n", "1")
    assert tested.returncode == 0, tested.stderr


@pytest.mark.parametrize("source", ["model.ckpt", "model.dp", "model.pth"])
def test_a_run_begins_with_the_weights_of_a_file(
    source: str, trained: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kit_input("dpa1", folder, training__numb_steps=1)
    assert dp("train", "input.json", "--init-model", str(trained / source)) == 0
    assert "Initial weights are taken from" in capfd.readouterr().err


def test_a_model_is_fine_tuned(trained: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kit_input("dpa1", folder, training__numb_steps=1)
    assert dp("train", "input.json", "--finetune", str(trained / "model.ckpt")) == 0
    assert "Fine-tuning of" in capfd.readouterr().err


def test_weights_of_another_model_are_refused(trained: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kit_input("se_e3", folder, training__numb_steps=1)
    assert dp("train", "input.json", "--init-model", str(trained / "model.ckpt")) == 2
    assert "is of another model than the input file describes" in capfd.readouterr().err
