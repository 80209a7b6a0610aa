"""Physics, gradients, trainings, restarts and two ranks on a device, against the CPU.

`make gpu` runs these on CUDA. Without `LOCKSTEP_DEVICE_TESTS` they run on the CPU by the operations that other devices
use, so that they are known to work when somebody with a GPU needs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.geometry import SplineBasis
from lockstep.geometry import moments as moments_module
from lockstep.model import Potential
from lockstep.model.potential import Parameters
from lockstep.observe.lcurve import read_lcurve
from potentials import KINDS, VARIANTS, Frame, close, random_frame, stack, variant_potential
from runs import tiny_input, tiny_system, write_input

DEVICE = os.environ.get("LOCKSTEP_DEVICE_TESTS", "cpu")
ON_GPU = DEVICE == "cuda"
BASIS = SplineBasis(intervals=96, s_max=1.0)
NAMES = ["one_side", "two_side", "exclude", "parameters", "radial_exclude", "concat_mean", "smooth", "hybrid_both"]


def answers(potential: Potential, frames: list[Frame], basis: SplineBasis | None) -> dict[str, np.ndarray]:
    """Energies, forces, virials, and the gradient of a loss on all of them by the weights."""
    coord, cell, types, fparam, aparam = stack(frames)
    place = potential.device
    pairs = potential.find_pairs(coord, cell, types)
    environment = potential.environment_builder().build(pairs, types, [basis] * len(potential.cutoffs))
    given = (None if x is None else torch.from_numpy(x).to(place) for x in (fparam, aparam))
    potential.zero_grad()
    found = potential(environment, Parameters(*given))
    loss = (found.energy**2).sum() + (found.force**2).sum() + (found.virial**2).sum() + (found.atom_energy**3).sum()
    loss.backward()
    gradients = [p.grad.reshape(-1) for p in potential.parameters() if p.grad is not None]
    columns = {"energy": found.energy, "force": found.force, "virial": found.virial, "gradient": torch.cat(gradients)}
    return {name: tensor.detach().cpu().numpy() for name, tensor in columns.items()}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without the compiled loops of the CPU, where this stands in for a device."""
    if not ON_GPU:
        monkeypatch.setattr(moments_module, "_kernels", lambda: None)
    return monkeypatch


@pytest.mark.parametrize("basis", [BASIS, None], ids=["splines", "exact"])
@pytest.mark.parametrize("name", [*VARIANTS, *KINDS] if ON_GPU else NAMES)
def test_physics_and_gradients_are_those_of_the_cpu(
    name: str, basis: SplineBasis | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    potential = variant_potential(name)
    frames = [random_frame("triclinic", n=6, seed=s, potential=potential) for s in range(2)]
    expected = answers(potential, frames, basis)
    if not ON_GPU:
        monkeypatch.setattr(moments_module, "_kernels", lambda: None)
    found = answers(potential.to(DEVICE), frames, basis)
    for column, value in expected.items():
        close(found[column], value, 1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["one_side", "radial", "smooth_mean", "hybrid"])
def test_forces_are_the_derivative_of_the_energy(name: str, plain: pytest.MonkeyPatch) -> None:
    potential = variant_potential(name).to(DEVICE)
    frame = random_frame("triclinic", n=5, potential=potential)
    force, step = answers(potential, [frame], BASIS)["force"][0], 1e-4
    for atom, axis in ((0, 0), (2, 1), (4, 2)):
        energies = []
        for sign in (1, -1):
            moved = frame.coord.copy()
            moved[atom, axis] += sign * step
            energies.append(answers(potential, [Frame(moved, frame.cell, frame.types)], BASIS)["energy"][0])
        assert -(energies[0] - energies[1]) / (2 * step) == pytest.approx(force[atom, axis], abs=1e-6)


# ---------------------------------------------------------------- trainings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_system(tmp_path / "train", n_frames=6)
    tiny_system(tmp_path / "valid", n_frames=3, seed=1)
    return tmp_path


def train(folder: Path, *arguments: str, device: str = DEVICE, ranks: int = 1, **changes: Any) -> str:
    """`dp train` as a user runs it; returns its log."""
    changes = {"training__validation_data": {"systems": ["valid"]}, "training__numb_steps": 12, **changes}
    write_input(folder, tiny_input(**changes))
    dp = [sys.executable, "-m", "lockstep.cli.main"]
    if ranks > 1:
        dp = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "-m", "lockstep.cli.main"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "NUM_WORKERS": "1", "DEVICE": device if device == "cpu" else ""}
    done = subprocess.run(
        [*dp, "train", "input.json", *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def curves_agree(folder: Path, expected: dict[str, np.ndarray]) -> None:
    """To a unit of the third digit, the last that is printed: on a GPU sums over pairs come in any order."""
    found = read_lcurve(folder / "lcurve.out")
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_allclose(found[name], column, rtol=0.01, err_msg=name)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SOAP"] if ON_GPU else ["Adam"])
def test_a_training_learns_what_it_learns_on_the_cpu(optimizer: str, folder: Path) -> None:
    changes = {"optimizer": {"type": optimizer}, "training__gradient_max_norm": 20.0}
    train(folder, device="cpu", **changes)
    expected = read_lcurve(folder / "lcurve.out")
    log = train(folder, **changes)
    assert f"computing device:     {'gpu' if ON_GPU else 'cpu'}:0" in log
    curves_agree(folder, expected)


def test_a_restart_goes_on_as_if_never_stopped(folder: Path) -> None:
    train(folder)
    expected = read_lcurve(folder / "lcurve.out")
    weights = load_checkpoint(str(folder / "model.ckpt")).tensors
    train(folder, "--restart", "model.ckpt-8")
    curves_agree(folder, expected)
    rounding = {"rtol": 1e-6, "atol": 1e-9} if ON_GPU else {"rtol": 0.0, "atol": 0.0}
    for name, tensor in load_checkpoint(str(folder / "model.ckpt")).tensors.items():
        torch.testing.assert_close(tensor, weights[name], **rounding)


def test_two_ranks_train_as_one_with_twice_the_micro_batches(folder: Path) -> None:
    if ON_GPU and torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs, and this machine has one")
    train(folder, training__acc_freq=2)
    expected = read_lcurve(folder / "lcurve.out")
    log = train(folder, ranks=2, learning_rate__scale_by_worker="none")
    assert "world size:           2" in log
    curves_agree(folder, expected)


def test_the_budget_adds_up_to_the_wall_clock(folder: Path) -> None:
    train(folder)
    lines = [json.loads(line) for line in (folder / "budget.jsonl").read_text().splitlines()]
    assert all(sum(line["budget"].values()) == pytest.approx(1.0, abs=1e-3) for line in lines)
    assert all(line["budget"]["forward"] > 0 for line in lines)


WAITLESS = """
import torch
from lockstep.training.loop import Trainer
run = Trainer.step

def step(self, number):
    # Torch raises at every operation that makes the host wait for the device.
    torch.cuda.set_sync_debug_mode("error" if number > 2 else "default")
    try:
        return run(self, number)
    finally:
        torch.cuda.set_sync_debug_mode("default")

Trainer.step = step
import sys
from lockstep.cli.main import main
sys.exit(main())
"""


@pytest.mark.skipif(not ON_GPU, reason="only CUDA can tell")
@pytest.mark.parametrize("spectral", [32, "off"])
def test_no_operation_of_a_step_waits_for_the_device(spectral: int | str, folder: Path) -> None:
    quiet = {"training__disp_freq": 100, "training__save_freq": 100, "model__descriptor__spectral": spectral}
    write_input(folder, tiny_input(**quiet))
    done = subprocess.run(
        [sys.executable, "-c", WAITLESS, "train", "input.json"], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
