"""Checkpoints and frozen models of DeePMD-kit's PyTorch backend, read without it, running nothing that is in them."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.errors import CheckpointError
from lockstep.interop.loading import load_potential
from potentials import close
from runs import dp, tiny_system, write_input

FILES = Path(__file__).parent / "reference" / "pytorch"
NAMES = ("se_e2_a", "hybrid")


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_gives_the_numbers_of_deepmd_kit(name: str, suffix: str) -> None:
    potential = load_potential(FILES / f"{name}{suffix}")
    numbers = np.load(FILES / f"{name}.npz")
    found = potential.evaluate(numbers["coord"], numbers["cell"], numbers["types"])
    for key in ("energy", "force", "virial"):
        close(getattr(found, key), numbers[key], 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_and_frozen_model_hold_the_same_weights(name: str) -> None:
    one, other = (load_potential(FILES / f"{name}{suffix}").state_dict() for suffix in (".pt", ".pth"))
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(("option", "suffix"), [("--init-model", ".pt"), ("--init-frz-model", ".pth")])
@pytest.mark.parametrize("name", NAMES)
def test_a_training_begins_with_its_weights(
    name: str, option: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_system(tmp_path / "train", n_frames=4)
    (tmp_path / "train" / "type_map.raw").write_text("O\nH\n")
    shutil.copy(FILES / f"{name}{suffix}", tmp_path / f"theirs{suffix}")
    found = load_potential(FILES / f"{name}{suffix}")
    write_input(
        tmp_path,
        {
            "model": found.config.model_dump(mode="json"),
            "learning_rate": {"type": "exp", "start_lr": 1e-12, "stop_lr": 1e-13, "decay_steps": 1},
            "loss": {"start_pref_e": 0.1, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
            "training": {"training_data": {"systems": ["train"]}, "numb_steps": 2, "seed": 3},
        },
    )
    monkeypatch.chdir(tmp_path)
    assert dp("train", "input.json", option, f"theirs{suffix}") == 0
    trained = load_checkpoint("model.ckpt").group("model")
    for key, value in found.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-9, atol=1e-9)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    """In both kinds of files, and without running it."""

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "exploded",))  # type: ignore[return-value]

    torch.save({"model": {"_extra_state": Bomb()}}, tmp_path / "bomb.pt")
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w") as archive:
        archive.writestr("bomb/data.pkl", pickle.dumps(Bomb()))
        archive.writestr("bomb/code/__torch__/bomb.py", "")
    for name in ("bomb.pt", "bomb.pth"):
        with pytest.raises(CheckpointError, match="cannot be"):
            load_potential(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_a_model_that_is_not_native_is_refused_by_its_key(tmp_path: Path) -> None:
    state = torch.load(FILES / "hybrid.pt", weights_only=True)
    state["model"]["_extra_state"]["model_params"]["descriptor"]["list"][1]["attn_layer"] = 2
    torch.save(state, tmp_path / "attention.pt")
    with pytest.raises(CheckpointError, match="attn_layer"):
        load_potential(tmp_path / "attention.pt")


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    state = torch.load(FILES / "se_e2_a.pt", weights_only=True)
    key = "model.Default.atomic_model.descriptor.sea.filter_layers.networks.0.layers.0.matrix"
    state["model"][key] = torch.zeros(1, 7)
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match=r"networks\.0\.layers\.0\.matrix have shape"):
        load_potential(tmp_path / "other.pt")


def test_several_models_in_one_checkpoint_are_named(tmp_path: Path) -> None:
    state = torch.load(FILES / "se_e2_a.pt", weights_only=True)
    model = state["model"]
    state["model"] = {key.replace("Default", "water"): value for key, value in model.items()} | model
    torch.save(state, tmp_path / "two.pt")
    with pytest.raises(CheckpointError, match="Default, water"):
        load_potential(tmp_path / "two.pt")


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = (FILES / "se_e2_a.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError):
        load_potential(tmp_path / "cut.pth")
