"""Whole trainings on a device without numbers: what runs there runs on every device, and waits for none.

On PyTorch's `meta` device there are shapes and types, but no numbers. Whoever mixes devices, asks for a number, goes
through NumPy, or has a shape that depends on numbers, fails there. `OneDevice` finds what meta lets pass and a GPU
would wait for: operations in which an array of the host meets the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thread_group import on_ranks

from lockstep.config.foreign import parse_any_input
from lockstep.optim.optimizer import OPTIMIZERS
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.devices import Placement
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group
from lockstep.tasks.energy.task import EnergyTask
from lockstep.training import session
from lockstep.training.loop import Trainer
from lockstep.training.options import Options
from potentials import ATTEN, RADIAL, SECOND, SHORT, SMOOTH, STRIP
from runs import make_frames, tiny_input, tiny_system, write_frames
from standins import MetaDevice, OneDevice, RecordingDevice, standing_in

Changes = dict[str, Any]
PLAIN: Changes = {"type": "se_e2_a", "sel": [24, 24], "rcut": 4.0, "rcut_smth": 1.5, "neuron": [4, 8], "axis_neuron": 3}
ATTENTIVE: Changes = {**PLAIN, "sel": 48}
DESCRIPTORS: dict[str, Changes] = {
    "se_e2_a": {**PLAIN, "type_one_side": True},
    "se_e2_a two sides": {**PLAIN, "type_one_side": False, "exclude_types": [[0, 1]], "resnet_dt": True},
    "se_e2_r": {**PLAIN, **RADIAL},
    "se_e2_r exclude": {**PLAIN, **RADIAL, "exclude_types": [[0, 1]], "env_protection": 0.1},
    "se_atten": {**ATTENTIVE, **ATTEN, "sel": 48},
    "se_atten mean": {**ATTENTIVE, **ATTEN, "sel": 48, "set_davg_zero": False, "type_one_side": True},
    "se_atten strip": {**ATTENTIVE, **STRIP, "sel": 48},
    "se_atten smooth": {**ATTENTIVE, **SMOOTH, "sel": 48},
    "se_atten_v2": {**ATTENTIVE, **SECOND, "sel": 48},
    "hybrid": {"type": "hybrid", "list": [{**PLAIN}, {**PLAIN, **RADIAL, **SHORT, "sel": [24, 24]}]},
    "hybrid mixed": {"type": "hybrid", "list": [{**ATTENTIVE, **SMOOTH, "sel": 48}, {**ATTENTIVE, **ATTEN, "sel": 48}]},
}
STEPS = 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Data, and everything taken away that is there to bring numbers to the disk."""
    tiny_system(tmp_path / "train", n_frames=6)
    tiny_system(tmp_path / "valid", n_frames=3, seed=1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUM_WORKERS", "1")
    monkeypatch.setattr(session, "build_store", lambda *_: session.NullStore())
    monkeypatch.setattr(EnergyTask, "finish", lambda self: None)
    monkeypatch.setattr(session, "check_same_weights", lambda *_: None)
    with standing_in("meta", MetaDevice, monkeypatch):
        yield tmp_path


def described(name: str, spectral: str | int, precision: str) -> Changes:
    """A descriptor's section, with all its parts in a precision and with splines or without."""
    changes = {"spectral": spectral, "precision": precision, "seed": 1}

    def finished(section: Changes) -> Changes:
        return {key: value for key, value in {**section, **changes}.items() if value is not None}

    section = DESCRIPTORS[name]
    if "list" in section:
        return {"type": "hybrid", "list": [finished(part) for part in section["list"]]}
    return finished(section)


def train(group: Group | None = None, **changes: Any) -> None:
    """A training of some steps on the meta device, each of them watched."""
    base = {
        "training__validation_data": {"systems": ["valid"]},
        "training__training_data": {"systems": ["train"], "batch_size": 2},
        "training__numb_steps": STEPS,
        "training__disp_freq": STEPS,
        "training__gradient_max_norm": 5.0,
        "loss__start_pref_v": 1.0,
        "loss__limit_pref_v": 1.0,
    }
    config = parse_any_input(tiny_input(**{**base, **changes}))
    group = group or SoloGroup(WorkerContext("alone", 0, 1, 0, 1))
    session.train(config, Path(), Options(), group, Placement("meta", 1, 1, spare_cores=1))


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """For each step in which operations the host and the device have met, from the first one on."""
    run, met = Trainer.step, []

    def step(self: Trainer, number: int) -> Any:
        OneDevice.met.clear()
        with OneDevice():
            result = run(self, number)
        met.append(OneDevice.met[:])
        assert {p.device.type for p in self.task.module.parameters()} == {"meta"}
        return result

    monkeypatch.setattr(Trainer, "step", step)
    return met


def assert_apart(met: list[list[str]]) -> None:
    """Constants may come to the device with the first step, nothing but samples later."""
    assert len(met) == STEPS
    assert met[-1] == []


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("spectral", [32, "off"])
@pytest.mark.parametrize("name", DESCRIPTORS)
def test_every_descriptor_trains_on_a_device_of_its_own(
    name: str, spectral: int | str, precision: str, folder: Path, met: list[list[str]]
) -> None:
    train(model__descriptor=described(name, spectral, precision), model__fitting_net__precision=precision)
    assert_apart(met)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_every_optimizer_trains_on_a_device_of_its_own(
    optimizer: str, precision: str, folder: Path, met: list[list[str]]
) -> None:
    section = described("se_e2_a", 32, precision)
    train(optimizer={"type": optimizer}, model__descriptor=section, model__fitting_net__precision=precision)
    assert_apart(met)


LOSSES: dict[str, Changes] = {
    "all terms": {
        "loss__start_pref_ae": 1.0,
        "loss__limit_pref_ae": 1.0,
        "loss__start_pref_pf": 1.0,
        "loss__limit_pref_pf": 1.0,
        "loss__use_default_pf": True,
    },
    "huber": {"loss__use_huber": True},
    "absolute": {"loss__loss_func": "mae"},
    "relative": {"loss__relative_f": 0.1},
    "averages": {"training__disp_avg": True, "training__acc_freq": 2},
    "mixed precision": {"training__mixed_precision": {"output_prec": "float64", "compute_prec": "float32"}},
    "vacuum": {"model__fitting_net__atom_ener": [-1.0, None]},
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_on_a_device_of_its_own(name: str, folder: Path, met: list[list[str]]) -> None:
    changes: Changes = {"model__descriptor": described("se_e2_a", 32, "float64")}
    train(**{**changes, **LOSSES[name]})
    assert_apart(met)


@pytest.mark.parametrize("ranks_per_frame", [1, 2])
@pytest.mark.parametrize("optimizer", ["Adam", "SOAP"])
def test_two_ranks_train_on_devices_of_their_own(
    ranks_per_frame: int, optimizer: str, folder: Path, met: list[list[str]]
) -> None:
    changes: Changes = {
        "optimizer": {"type": optimizer},
        "training__ranks_per_frame": ranks_per_frame,
        "model__descriptor": described("se_e2_a", 32, "float64"),
    }
    on_ranks(2, lambda group: train(group, **changes))
    assert [step for step in met[-2:] if step] == []


def test_padded_frames_and_parameters_train_on_a_device_of_their_own(folder: Path, met: list[list[str]]) -> None:
    types = (0, 0, 1, 1, 0, 1)
    frames = make_frames(4, types, seed=3)
    real = np.tile(types, (4, 1))
    real[:2, -1] = -1
    frames |= {"real_atom_types": real, "fparam": np.ones((4, 2)), "aparam": np.ones((4, 6))}
    write_frames(folder / "mixed", frames, [0] * 6, ("A", "B"))
    data = {"systems": ["mixed"], "batch_size": 4}
    train(
        training__training_data=data,
        training__validation_data=data,
        model__descriptor=described("se_atten", 32, "float64"),
        model__fitting_net__numb_fparam=2,
        model__fitting_net__numb_aparam=1,
    )
    assert_apart(met)


def test_the_watch_finds_what_a_gpu_would_wait_for() -> None:
    """An array of the host in an operation of the device, and a copy that is not asked for as one."""
    there, here = torch.empty(3, device="meta"), torch.tensor([0, 2])
    OneDevice.met.clear()
    with OneDevice():
        there * 2.0 + 1.0
        assert OneDevice.met == []
        there[here]
        assert len(OneDevice.met) == 1
        torch.zeros(3).to("meta")
        assert len(OneDevice.met) == 2
        with pytest.raises(RuntimeError):
            there.sum().item()
        with pytest.raises(RuntimeError):
            there.nonzero()
    OneDevice.met.clear()


def test_numbers_leave_the_device_by_being_fetched_alone(folder: Path) -> None:
    train(model__descriptor=described("se_e2_a", 32, "float64"))
    assert RecordingDevice.calls.count("fetch") >= STEPS
