"""`dp freeze`, `dp show` and `dp model-devi`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_samples import write_model, write_system

from lockstep.checkpoint.store import CheckpointStore
from lockstep.interop.deepmd import load_dp
from lockstep.model import Potential
from potentials import DESCRIPTOR, FITTING, evaluate, random_frame, random_potential


def write_checkpoint(folder: Path, step: int = 7, seed: int = 0) -> Potential:
    potential = random_potential(seed=seed)
    model = {
        "type_map": ["O", "H"],
        "descriptor": {**DESCRIPTOR, "seed": seed},
        "fitting_net": {**FITTING, "seed": seed},
    }
    config = {
        "model": model,
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-8},
        "training": {"training_data": {"systems": ["data"]}, "numb_steps": 10},
    }
    tensors = {f"model.{name}": tensor for name, tensor in potential.state_dict().items()}
    CheckpointStore(folder / "model.ckpt", 5).save(step, tensors, {"input": config})
    return potential


@pytest.mark.parametrize("where", [".", "model.ckpt", "model.ckpt-7", "model.ckpt-7.safetensors"])
def test_freeze_writes_the_checkpoints_model(dp: Callable, tmp_path: Path, where: str) -> None:
    potential = write_checkpoint(tmp_path)
    result = dp("freeze", "-c", where, "-o", "model.dp")
    assert result.code == 0, result.err
    frame = random_frame()
    assert torch.equal(evaluate(load_dp("model.dp"), frame).force, evaluate(potential, frame).force)


def test_freeze_by_default_reads_this_folder_and_writes_frozen_model(dp: Callable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert dp("freeze").code == 0
    assert dp("show", "frozen_model", "type-map").code == 0


def test_freeze_replaces_an_older_model(dp: Callable, tmp_path: Path) -> None:
    write_model(tmp_path / "model.dp", seed=3)
    potential = write_checkpoint(tmp_path)
    assert dp("freeze", "-o", "model.dp").code == 0
    assert torch.equal(load_dp("model.dp").network.bias, potential.network.bias)


def test_freeze_leaves_other_files_alone(dp: Callable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "notes.dp").write_text("my notes")
    assert dp("freeze", "-o", "notes.dp").code == 2
    assert (tmp_path / "notes.dp").read_text() == "my notes"


@pytest.mark.parametrize("name", ["model.pb", "model.pth", "model.pt2"])
def test_freeze_tells_how_to_get_other_formats(dp: Callable, tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path)
    result = dp("freeze", "-o", name)
    assert result.code == 2
    assert f"dp convert-backend model.dp {name}" in result.err


def test_freeze_makes_the_folder_that_is_not_there(dp: Callable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert dp("freeze", "-o", "new/model.dp").code == 0
    assert (tmp_path / "new" / "model.dp").is_file()


def test_freeze_where_no_folder_can_be(dp: Callable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "file").write_text("")
    result = dp("freeze", "-o", "file/model.dp")
    assert result.code == 2
    assert "file/model.dp" in result.err


def test_show_says_what_a_model_is(dp: Callable, tmp_path: Path) -> None:
    write_model(tmp_path / "model.dp")
    result = dp("show", "model.dp", "type-map", "descriptor", "fitting-net", "size")
    assert "The type_map is ['O', 'H']" in result.err
    assert "'rcut': 4.0" in result.err
    assert "'neuron': [10, 10]" in result.err
    # Two embedding nets 1-4-8-8 and two fitting nets 24-10-10-1 with one timestep of 10.
    embedding = 2 * (8 + 40 + 72)
    fitting = 2 * (250 + 110 + 10 + 11)
    assert f"Parameters in total: {embedding + fitting:,}" in result.err


def test_show_draws_the_tree_of_the_file(dp: Callable, tmp_path: Path) -> None:
    write_model(tmp_path / "model.dp")
    result = dp("show", "model.dp", "serialization-tree", "observed-type")
    assert "└──fitting -> Fitting ener" in result.err
    assert "Observed types: ['O', 'H']" in result.err


def test_show_knows_no_branches(dp: Callable, tmp_path: Path) -> None:
    write_model(tmp_path / "model.dp")
    assert dp("show", "model.dp", "model-branch").code == 2


@pytest.fixture
def models(tmp_path: Path) -> list[Potential]:
    return [write_model(tmp_path / f"{seed}.dp", seed=seed) for seed in range(3)]


def test_deviation_is_the_spread_of_the_models(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    sample = write_system(tmp_path / "water", models[0], n=7)
    assert dp("model-devi", "-m", "0.dp", "1.dp", "2.dp", "-s", "water", "-f", "10", "--atomic").code == 0
    said = [evaluate(model, *sample.frames) for model in models]
    spread = torch.stack([p.force for p in said]).std(dim=0, unbiased=False).norm(dim=-1).numpy()
    virial = torch.stack([p.virial.reshape(-1, 9) / 7 for p in said]).std(dim=0, unbiased=False).numpy()
    energy = torch.stack([p.energy / 7 for p in said]).std(dim=0, unbiased=False).numpy()
    columns = [np.arange(5) * 10, virial.max(1), virial.min(1), np.linalg.norm(virial, axis=1) / 3]
    columns += [spread.max(1), spread.min(1), spread.mean(1), energy]
    expected = np.concatenate([np.stack(columns, axis=1), spread], axis=1)
    np.testing.assert_allclose(np.loadtxt("model_devi.out"), expected, rtol=1e-5)


def test_deviation_file_looks_like_deepmd_kits(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    write_system(tmp_path / "water", models[0])
    dp("model-devi", "-m", "0.dp", "1.dp", "-s", "water", "-o", "devi.out")
    first, header, row, *_ = (tmp_path / "devi.out").read_text().splitlines()
    assert first == "# water"
    names = ["max_devi_v", "min_devi_v", "avg_devi_v", "max_devi_f", "min_devi_f", "avg_devi_f", "devi_e"]
    assert header == "# step      " + "".join(f"{name:19s}" for name in names)
    assert len(row) == 12 + 7 * 19


def test_deviations_are_added_to_the_file(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    write_system(tmp_path / "water", models[0])
    for _ in range(2):
        dp("model-devi", "-m", "0.dp", "1.dp", "-s", "water")
    assert np.loadtxt("model_devi.out").shape == (10, 8)


def test_real_error_is_measured_against_the_labels(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    shifts = {"energy": np.array(1.2), "force": np.array(0.5), "virial": np.array(0.6)}
    write_system(tmp_path / "water", models[0], shifts=shifts)
    dp("model-devi", "-m", "0.dp", "0.dp", "-s", "water", "--real_error")
    row = np.loadtxt("model_devi.out")[0]
    np.testing.assert_allclose(row[1:], [0.1, 0.1, 0.1, *[0.5 * np.sqrt(3)] * 3, 0.2], rtol=1e-5)


def test_real_error_needs_labels(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    write_system(tmp_path / "water", models[0], labels=("energy",))
    assert dp("model-devi", "-m", "0.dp", "1.dp", "-s", "water", "--real_error").code == 2


def test_relative_deviation(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    sample = write_system(tmp_path / "water", models[0])
    dp("model-devi", "-m", "0.dp", "1.dp", "-s", "water", "--relative", "0.7", "--relative_v", "0.2")
    force = torch.stack([evaluate(model, *sample.frames).force for model in models[:2]])
    virial = torch.stack([evaluate(model, *sample.frames).virial.reshape(-1, 9) / 6 for model in models[:2]])
    size = force.mean(dim=0).norm(dim=-1)
    spread = force.std(dim=0, unbiased=False).norm(dim=-1) / (size + 0.7)
    spread_v = virial.std(dim=0, unbiased=False) / (virial.mean(dim=0).norm(dim=-1, keepdim=True) + 0.2)
    table = np.loadtxt("model_devi.out")
    np.testing.assert_allclose(table[:, 4], spread.max(dim=1).values, rtol=1e-5)
    np.testing.assert_allclose(table[:, 1], spread_v.max(dim=1).values, rtol=1e-5)


def test_models_of_other_types_are_refused(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    write_system(tmp_path / "water", models[0])
    write_model(tmp_path / "other.dp", type_map=("H", "O"))
    result = dp("model-devi", "-m", "0.dp", "other.dp", "-s", "water")
    assert result.code == 2
    assert "type_map" in result.err


def test_deviation_file_in_a_folder_that_is_not_there(dp: Callable, tmp_path: Path, models: list[Potential]) -> None:
    write_system(tmp_path / "water", models[0])
    result = dp("model-devi", "-m", "0.dp", "1.dp", "-s", "water", "-o", "nowhere/devi.out")
    assert result.code == 2
    assert "--output = 'nowhere/devi.out'" in result.err
