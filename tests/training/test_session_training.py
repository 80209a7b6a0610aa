"""Trainings of every kind learn, start where they are told, and do no needless work."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.config import parse_input
from lockstep.data import MicroBatch
from lockstep.observe.lcurve import read_lcurve
from lockstep.optim.schedule import make_schedule
from runs import COPPER, dp, make_frames, tiny_input, tiny_system, write_frames, write_input

TYPES = (0, 0, 1, 1, 0, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train", n_frames=6, types=TYPES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(folder: Path, *arguments: str, **changes: Any) -> dict[str, np.ndarray]:
    write_input(folder, tiny_input(**changes))
    assert dp("train", "input.json", "-v", "WARNING", *arguments) == 0
    return read_lcurve("lcurve.out")


# ---------------------------------------------------------------- learning


def test_copper_forces_are_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces of some 0.8 eV/A are met within 0.35 eV/A after some seconds."""
    monkeypatch.chdir(tmp_path)
    changes = {
        "model__type_map": ["Cu"],
        "model__descriptor__sel": "auto",
        "model__descriptor__rcut": 4.5,
        "model__descriptor__rcut_smth": 2.0,
        "model__descriptor__neuron": [6, 12],
        "model__descriptor__axis_neuron": 4,
        "model__fitting_net__neuron": [16, 16],
        "learning_rate": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-4, "decay_steps": 20},
        "training__training_data": {"systems": [str(COPPER / "train_0"), str(COPPER / "train_1")], "batch_size": 1},
        "training__validation_data": {"systems": [str(COPPER / "validation")], "batch_size": 4, "numb_btch": 4},
        "training__numb_steps": 150,
        "training__disp_freq": 150,
        "training__save_freq": 150,
    }
    curve = train(tmp_path, **changes)
    assert curve["rmse_f_val"][0] > 0.5
    assert curve["rmse_f_val"][-1] < 0.35


LONG = {"training__numb_steps": 150, "training__disp_freq": 25, "training__save_freq": 150, "training__disp_avg": True}
ENERGIES = {
    **LONG,
    "training__training_data__batch_size": 2,
    "loss__start_pref_e": 10.0,
    "loss__start_pref_f": 1.0,
    "learning_rate__start_lr": 0.02,
}
LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "virial": ({"loss__start_pref_v": 1.0, "loss__limit_pref_v": 1.0}, "rmse_v_trn"),
    "atomic energies": ({"loss__start_pref_ae": 10.0, "loss__limit_pref_ae": 10.0}, "rmse_ae_trn"),
    "prefactors": ({"loss__start_pref_pf": 10.0, "loss__limit_pref_pf": 10.0}, "rmse_pf_trn"),
    "huber": ({"loss__use_huber": True}, "rmse_f_trn"),
    "mae": ({"loss__loss_func": "mae"}, "mae_f_trn"),
    "relative": ({"loss__relative_f": 0.1}, "rmse_f_trn"),
    "AdamW": ({"optimizer": {"type": "AdamW", "weight_decay": 0.001}}, "rmse_f_trn"),
    "accumulated": ({"training__acc_freq": 2}, "rmse_f_trn"),
    "exact nets": ({"model__descriptor__spectral": "off"}, "rmse_f_trn"),
    "float32": ({"model__descriptor__precision": "float32", "model__fitting_net__precision": "float32"}, "rmse_f_trn"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_error_falls(name: str, folder: Path) -> None:
    changes, column = LOSSES[name]
    np.save(folder / "train" / "set.000" / "atom_pref.npy", np.tile([1.0, 0, 2, 1, 0, 1], (6, 1)))
    curve = train(folder, **LONG, **changes)
    assert curve[column][-1] < 0.5 * curve[column][0]


def test_frame_parameters_are_learnt_from(folder: Path) -> None:
    """The energy depends on a number that only fparam.npy knows."""
    frames = make_frames(8, TYPES, seed=2)
    temperature = np.linspace(-1, 1, 8)
    frames["energy"] = frames["energy"] + 3 * temperature
    write_frames(folder / "hot", {**frames, "fparam": temperature[:, None]}, TYPES, ("A", "B"))
    blind = train(folder, **ENERGIES, training__training_data__systems="hot")
    seeing = train(folder, **ENERGIES, training__training_data__systems="hot", model__fitting_net__numb_fparam=1)
    assert seeing["rmse_e_trn"][-1] < 0.3 * blind["rmse_e_trn"][-1]


def test_atomic_parameters_are_learnt_from(folder: Path) -> None:
    frames = make_frames(8, TYPES, seed=2)
    charge = np.random.default_rng(0).normal(0, 1, (8, 6))
    frames["energy"] = frames["energy"] + charge.sum(axis=1)
    write_frames(folder / "charged", {**frames, "aparam": charge}, TYPES, ("A", "B"))
    blind = train(folder, **ENERGIES, training__training_data__systems="charged")
    seeing = train(folder, **ENERGIES, training__training_data__systems="charged", model__fitting_net__numb_aparam=1)
    assert seeing["rmse_e_trn"][-1] < 0.75 * blind["rmse_e_trn"][-1]


def test_every_kind_of_data_at_once(folder: Path) -> None:
    """A molecule, a system of mixed types, a group of an HDF5 file, and a crystal, in one training."""
    tiny_system(folder / "molecule", types=TYPES[:4], seed=4, periodic=False)
    tiny_system(folder / "mixed", types=TYPES, seed=5)
    (folder / "mixed" / "type.raw").write_text("0 0 0 0 0 0\n")
    np.save(folder / "mixed" / "set.000" / "real_atom_types.npy", np.tile(TYPES, (6, 1)))
    with h5py.File(folder / "data.hdf5", "w") as file:
        file["crystal/type.raw"] = list(TYPES)
        file["crystal/type_map.raw"] = np.array(["A", "B"], dtype="S")
        for name, values in make_frames(5, TYPES, seed=6).items():
            file[f"crystal/set.000/{name}.npy"] = values
    systems = ["train", "molecule", "mixed", "data.hdf5#/crystal"]
    curve = train(folder, **LONG, training__training_data__systems=systems)
    assert curve["rmse_f_trn"][-1] < 0.5 * curve["rmse_f_trn"][0]


def test_mixed_types_train_as_plain_ones_do(folder: Path) -> None:
    plain = train(folder)
    (folder / "train" / "type.raw").write_text("0 0 0 0 0 0\n")
    np.save(folder / "train" / "set.000" / "real_atom_types.npy", np.tile(TYPES, (6, 1)))
    mixed = train(folder)
    for name, column in plain.items():
        np.testing.assert_array_equal(column, mixed[name])


# ---------------------------------------------------------------- schedules and frozen weights

RATES: dict[str, dict[str, Any]] = {
    "exp, stepped": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-4, "decay_steps": 4},
    "exp, smooth": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-4, "decay_steps": 4, "smooth": True},
    "cosine": {"type": "cosine", "start_lr": 0.01, "stop_lr": 1e-4},
    "wsd": {"type": "wsd", "start_lr": 0.01, "stop_lr": 1e-4, "decay_phase_ratio": 0.5},
    "warm-up": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-4, "decay_steps": 4, "warmup_steps": 3},
}


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_are_those_of_the_schedule(name: str, folder: Path) -> None:
    curve = train(folder, learning_rate=RATES[name], training__disp_freq=1)
    schedule = make_schedule(parse_input(tiny_input(learning_rate=RATES[name])).learning_rate, 12)
    expected = [float(f"{schedule.lr(step):.1e}") for step in range(12)]
    assert curve["lr"].tolist() == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize(
    ("descriptor", "fitting", "frozen"),
    [
        (False, [True, True, True], ("descriptor",)),
        (True, [False, True, True], ("fitting.nets.0.layers.0", "fitting.nets.1.layers.0")),
        (True, [True, True, False], ("fitting.nets.0.layers.2", "fitting.nets.1.layers.2")),
        (True, False, ("fitting",)),
    ],
)
def test_exactly_the_frozen_weights_stay(descriptor: bool, fitting: Any, frozen: tuple[str, ...], folder: Path) -> None:
    changes = {"model__descriptor__trainable": descriptor, "model__fitting_net__trainable": fitting}
    train(folder, **changes, training__save_freq=1, training__max_ckpt_keep=20)
    first = load_checkpoint("model.ckpt-1.safetensors").group("model")
    last = load_checkpoint("model.ckpt").group("model")
    weights = [name for name in first if name.endswith(("weight", "bias", "idt")) and "nets" in name]
    assert weights
    for name in weights:
        stays = any(f".{part}." in f".{name}." or name.startswith(f"network.{part}") for part in frozen)
        assert torch.equal(first[name], last[name]) == stays, name


# ---------------------------------------------------------------- starting from other weights


@pytest.mark.parametrize("option", ["--init-model", "--init-frz-model"])
def test_initial_weights(option: str, folder: Path) -> None:
    """With no learning rate to speak of the new run ends with the very weights it began with."""
    train(folder, **{**LONG, "training__numb_steps": 30})
    given = load_checkpoint("model.ckpt").group("model")
    assert dp("freeze", "-o", "old.dp") == 0
    (folder / "model.ckpt-30.safetensors").rename(folder / "old.safetensors")
    source = "old.safetensors" if option == "--init-model" else "old.dp"
    still = {"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-30, "decay_steps": 5}
    train(folder, option, source, learning_rate=still, training__numb_steps=1, model__descriptor__seed=77)
    fresh = load_checkpoint("model.ckpt")
    assert fresh.step == 1
    for name, tensor in fresh.group("model").items():
        torch.testing.assert_close(tensor, given[name], rtol=1e-14, atol=1e-25, msg=name)


def test_initial_weights_begin_a_new_run(folder: Path) -> None:
    train(folder)
    (folder / "model.ckpt-12.safetensors").rename(folder / "old.safetensors")
    curve = train(folder, "--init-model", "old.safetensors")
    assert curve["step"][0] == 1
    assert curve["lr"][0] == 0.005
    assert load_checkpoint("model.ckpt").step == 12


# ---------------------------------------------------------------- no needless work


def test_no_neighbour_list_is_built_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.tasks.energy import survey

    tiny_system(folder / "valid", n_frames=3, seed=8)
    found: list[bytes] = []
    original = survey.batch_pairs

    def counted(batch: MicroBatch, frame: int, *arguments: Any) -> Any:
        found.append(batch.coord[frame].tobytes())
        return original(batch, frame, *arguments)

    monkeypatch.setattr(survey, "batch_pairs", counted)
    train(folder, training__numb_steps=30, training__validation_data={"systems": ["valid"], "numb_btch": 3})
    assert len(found) == len(set(found)) == 9


@pytest.mark.parametrize("spectral", ["auto", "off"])
def test_one_backward_a_step_and_none_twice(spectral: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forces come from the forward pass: nothing is differentiated with a graph of its own gradient."""
    backwards: list[bool] = []
    original = torch.Tensor.backward

    def backward(self: Any, *arguments: Any, create_graph: bool = False, **options: Any) -> Any:
        backwards.append(create_graph or any(arguments[2:]))
        return original(self, *arguments, create_graph=create_graph, **options)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: pytest.fail("torch.autograd.grad was called"))
    train(folder, model__descriptor__spectral=spectral)
    assert backwards == [False] * 12


def test_the_loop_never_changes_the_input(folder: Path) -> None:
    given = tiny_input()
    before = copy.deepcopy(given)
    train(folder)
    assert given == before


def test_trainings_leave_no_open_files(folder: Path) -> None:
    """A notebook, or this test session, has many of them in one process."""

    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    train(folder)
    before = open_files()
    for _ in range(3):
        train(folder)
    assert open_files() <= before


def test_the_way_to_the_first_step_loads_nothing_of_torchs_compiler(folder: Path) -> None:
    """A second of start-up: an innocent call (torch.optim's classes, torch.func) is enough to bring it in."""
    write_input(folder, tiny_input(training__numb_steps=2))
    code = "import sys; from lockstep.cli.main import main; main(['train', 'input.json']); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1]
    assert "'lockstep.training.loop'" in modules
    assert "torch._dynamo" not in modules
    assert "sympy" not in modules
