"""`dp test`: errors that are known beforehand, because the labels are the model's own answers plus a shift."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_samples import write_model, write_system


def test_energy_and_force_errors(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    shift = np.array([0.6, -1.2, 1.8, 0.0, 0.0])
    pulled = np.zeros((5, 18))
    pulled[:, 0] = 0.9
    write_system(tmp_path / "water", model, shifts={"energy": shift, "force": pulled})
    result = dp("test", "-m", "model.dp", "-s", "water")
    assert result.code == 0
    assert result.number("Energy MAE") == pytest.approx(3.6 / 5, rel=1e-5)
    assert result.number("Energy RMSE") == pytest.approx(np.sqrt((shift**2).mean()), rel=1e-5)
    assert result.number("Energy MAE/Natoms") == pytest.approx(3.6 / 5 / 6, rel=1e-5)
    assert result.number("Force  MAE") == pytest.approx(0.9 / 18, rel=1e-5)
    assert result.number("Force  RMSE") == pytest.approx(0.9 / np.sqrt(18), rel=1e-5)
    assert "# number of test data : 5 " in result.err


def test_virial_and_stress_errors(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "water", model, shifts={"virial": np.array(0.3)})
    result = dp("test", "-m", "model.dp", "-s", "water")
    assert result.number("Virial MAE") == pytest.approx(0.3, rel=1e-5)
    assert result.number("Virial RMSE/Natoms") == pytest.approx(0.05, rel=1e-5)
    assert result.number("Stress MAE") == pytest.approx(0.3 / 5.2**3, rel=1e-5)


def test_systems_are_averaged_by_their_frames(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "data" / "a", model, count=1, shifts={"energy": np.array(4.0)})
    write_system(tmp_path / "data" / "b", model, count=3, shifts={"energy": np.array(1.0)})
    result = dp("test", "-m", "model.dp", "-s", "data")
    assert result.number("Energy MAE") == pytest.approx((4.0 + 3 * 1.0) / 4, rel=1e-5)
    assert result.number("Energy RMSE") == pytest.approx(np.sqrt((16.0 + 3 * 1.0) / 4), rel=1e-5)
    assert "# number of systems : 2" in result.err


def test_what_has_no_label_is_not_reported(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "water", model, labels=("force",))
    result = dp("test", "-m", "model.dp", "-s", "water", "-d", "detail")
    assert "Force  RMSE" in result.err
    assert "Energy" not in result.err
    assert "Virial" not in result.err
    rows = np.loadtxt(tmp_path / "detail.e.out")
    assert np.isnan(rows[:, 0]).all()
    assert np.isfinite(rows[:, 1]).all()


def test_without_a_cell_there_is_no_virial(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "molecule", model, kind="none")
    result = dp("test", "-m", "model.dp", "-s", "molecule")
    assert result.code == 0
    assert "Virial" not in result.err


def test_detail_files_have_deepmd_kits_columns(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    sample = write_system(tmp_path / "water", model, shifts={"energy": np.array(6.0)})
    write_system(tmp_path / "water2", model, count=2, seed=50)
    (tmp_path / "systems.txt").write_text("water\n\nwater2\n")
    assert dp("test", "-m", "model.dp", "-f", "systems.txt", "-d", "out/detail").code == 2
    assert dp("test", "-m", "model.dp", "-f", "systems.txt", "-d", "detail").code == 0
    energy = np.loadtxt("detail.e.out")
    assert Path("detail.e.out").read_text().startswith("# water: data_e pred_e\n")
    np.testing.assert_allclose(energy[:5], np.stack([sample.energy + 6.0, sample.energy], axis=1))
    np.testing.assert_allclose(np.loadtxt("detail.e_peratom.out"), energy / 6)
    force = np.loadtxt("detail.f.out")
    assert force.shape == (7 * 6, 6)
    np.testing.assert_allclose(force[:30, 3:], sample.force.reshape(-1, 3), atol=1e-12)
    for name, columns in (("v", 18), ("v_peratom", 18), ("s", 18)):
        assert np.loadtxt(f"detail.{name}.out").shape == (7, columns)
    lines = Path("detail.f.out").read_text().splitlines()
    headers = {number: line for number, line in enumerate(lines) if line.startswith("#")}
    assert headers.keys() == {0, 31}
    assert headers[31].startswith("# water2: data_fx")


def test_only_so_many_frames(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    sample = write_system(tmp_path / "water", model)
    dp("test", "-m", "model.dp", "-s", "water", "-n", "2", "-d", "first")
    np.testing.assert_allclose(np.loadtxt("first.e.out")[:, 0], sample.energy[:2])


def test_shuffled_frames_depend_on_the_seed_alone(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "water", model, count=20)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        dp("test", "-m", "model.dp", "-s", "water", "-n", "6", "--shuffle-test", "-r", seed, "-d", name)
    assert Path("a.e.out").read_bytes() == Path("b.e.out").read_bytes() != Path("c.e.out").read_bytes()


def test_batches_do_not_change_the_answer(dp: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "water", model, count=7, shifts={"energy": np.linspace(0, 1, 7)})
    dp("test", "-m", "model.dp", "-s", "water", "-d", "whole")
    monkeypatch.setenv("DP_INFER_BATCH_SIZE", "13")
    dp("test", "-m", "model.dp", "-s", "water", "-d", "parts")
    np.testing.assert_allclose(np.loadtxt("whole.f.out"), np.loadtxt("parts.f.out"), atol=1e-12)


def test_energies_of_atoms(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    write_system(tmp_path / "water", model, labels=("energy", "atom_ener"), shifts={"atom_ener": np.array(0.25)})
    result = dp("test", "-m", "model.dp", "-s", "water", "-a")
    assert result.number("Atomic ener MAE") == pytest.approx(0.25, rel=1e-5)


def test_energies_of_atoms_need_their_labels(dp: Callable, tmp_path: Path) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"))
    result = dp("test", "-m", "model.dp", "-s", "water", "-a")
    assert result.code == 2
    assert "atom_ener.npy is missing" in result.err


def test_padding_atoms_count_nowhere(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp")
    sample = write_system(tmp_path / "mixed", model, kind="none", count=2)
    sets = tmp_path / "mixed" / "set.000"
    types = np.concatenate([np.tile(sample.frames[0].types, (2, 1)), np.full((2, 4), -1)], axis=1)
    np.savetxt(tmp_path / "mixed" / "type.raw", np.zeros(10), fmt="%d")
    np.save(sets / "real_atom_types.npy", types)
    np.save(sets / "coord.npy", np.pad(np.load(sets / "coord.npy"), ((0, 0), (0, 12))))
    np.save(sets / "force.npy", np.pad(np.load(sets / "force.npy") + 0.5, ((0, 0), (0, 12))))
    np.save(sets / "energy.npy", sample.energy + 3.0)
    result = dp("test", "-m", "model.dp", "-s", "mixed")
    assert result.number("Energy MAE/Natoms") == pytest.approx(0.5, rel=1e-5)
    assert result.number("Force  MAE") == pytest.approx(0.5, rel=1e-5)


def test_too_few_slots_are_reported(dp: Callable, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.dp", descriptor={"sel": [2, 2]})
    write_system(tmp_path / "water", model)
    assert "sel of the model is too small" in dp("test", "-m", "model.dp", "-s", "water").err


def test_the_log_file_holds_the_report(dp: Callable, tmp_path: Path) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"))
    dp("test", "-m", "model", "-s", "water", "-l", "test.log")
    assert "Force  RMSE" in (tmp_path / "test.log").read_text()
