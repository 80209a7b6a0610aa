"""One way to load a potential, whatever file holds it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep.checkpoint.store import CheckpointStore
from lockstep.errors import CheckpointError
from lockstep.interop.deepmd import save_dp
from lockstep.interop.loading import load_potential
from lockstep.model import Potential
from potentials import random_potential


@pytest.fixture
def potential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Potential:
    monkeypatch.chdir(tmp_path)
    return random_potential()


def save_checkpoint(potential: Potential, step: int) -> Path:
    """A checkpoint as training writes it."""
    config = {
        "model": potential.config.model_dump(mode="json"),
        "learning_rate": {"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-6, "decay_steps": 10},
        "training": {"numb_steps": 10, "training_data": {"systems": ["data"]}},
    }
    tensors = {f"model.{name}": tensor for name, tensor in potential.state_dict().items()}
    return CheckpointStore("model.ckpt", max_keep=5).save(step, tensors, {"input": config})


def same(a: Potential, b: Potential) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return a.cutoffs == b.cutoffs and all(torch.equal(first[name], second[name]) for name in first)


def test_a_dp_file(potential: Potential) -> None:
    save_dp(potential, "model.dp")
    assert same(load_potential("model.dp"), potential)


def test_a_dp_file_under_another_name(potential: Potential) -> None:
    save_dp(potential, "frozen")
    assert same(load_potential("frozen"), potential)


def test_a_dp_file_without_its_suffix(potential: Potential) -> None:
    save_dp(potential, "model.dp")
    assert same(load_potential("model"), potential)


def test_a_checkpoint_by_file_prefix_and_folder(potential: Potential) -> None:
    path = save_checkpoint(potential, 10)
    for name in (path, "model.ckpt", "model.ckpt-10", "."):
        assert same(load_potential(name), potential)


def test_the_newest_checkpoint_is_taken(potential: Potential) -> None:
    save_checkpoint(potential, 10)
    newer = random_potential(seed=9)
    save_checkpoint(newer, 20)
    assert same(load_potential("model.ckpt"), newer)


@pytest.mark.parametrize("name", ["missing.dp", "missing", "model.ckpt"])
@pytest.mark.usefixtures("potential")
def test_nothing_there_is_said_in_words(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such"):
        load_potential(name)


@pytest.mark.usefixtures("potential")
def test_a_file_of_another_kind_is_refused() -> None:
    Path("model").write_text("hello")
    with pytest.raises(CheckpointError, match="model"):
        load_potential("model")


@pytest.mark.usefixtures("potential")
def test_a_model_of_another_backend_is_refused_with_the_way_to_convert_it() -> None:
    Path("graph.pb").write_bytes(b"TensorFlow")
    with pytest.raises(CheckpointError) as caught:
        load_potential("graph.pb")
    assert "convert-backend graph.pb graph.dp" in caught.value.remedy
