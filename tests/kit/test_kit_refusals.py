"""Inputs of DeePMD-kit's models with a mistake in them: one screen, exit code 2, nothing touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kinds import kit_input

from lockstep.interop.kit import package
from runs import dp, folder_state

Change = Callable[[dict[str, Any]], Any]
MISTAKES: dict[str, tuple[str, Change, str]] = {
    "an unknown key": (
        "dpa1",
        lambda data: data["model"]["descriptor"].update(neurons=[2]),
        "model.descriptor: DeePMD-kit refuses it: undefined key `neurons`",
    ),
    "a loss that does not fit": ("dpa1", lambda data: data.update(loss={"type": "dos"}), "loss"),
    "a model neither side knows": ("dpa1", lambda data: data["model"]["descriptor"].update(type="dpa9"), "dpa9"),
    "an unknown learning rate": ("dpa1", lambda data: data["learning_rate"].update(type="steps"), "learning_rate"),
    "types that are no names": ("dpa1", lambda data: data["model"].update(type_map=[8, 1]), "type_map"),
    "a state that cannot be shared": (
        "dpa1",
        lambda data: (data.update(optimizer={"type": "HybridMuon"}), data["training"].update(zero_stage=1)),
        "training.zero_stage = 1: HybridMuon keeps its whole state on every rank",
    ),
    "a table that is not there": ("zbl", lambda data: data["model"].update(use_srtab="nowhere.txt"), "nowhere.txt"),
    "a model that only TensorFlow has": (
        "dpa1",
        lambda data: data["model"].update(descriptor={"type": "se_a_ebd_v2", "sel": [8, 8], "rcut": 4.0}),
        "dp --tf train",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_input(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kind, change, words = MISTAKES[name]
    data = kit_input(kind, folder)
    change(data)
    (folder / "input.json").write_text(json.dumps(data))
    before = folder_state(folder)
    assert dp("train", "input.json") == 2
    message = capfd.readouterr().err
    assert words in message
    assert "Traceback" not in message
    assert len(message.splitlines()) < 40
    assert folder_state(folder) == before


def test_labels_missing_for_the_loss(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kit_input("property", folder)
    (folder / "train/set.000/gap.npy").unlink()
    before = folder_state(folder)
    assert dp("train", "input.json") == 2
    assert "gap.npy is missing" in capfd.readouterr().err
    assert folder_state(folder) == before


def test_another_version_of_deepmd_kit(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit_input("dpa1", folder)
    before = folder_state(folder)
    monkeypatch.setattr(package, "version", lambda: "3.1.0")
    assert dp("train", "input.json") == 2
    assert folder_state(folder) == before
    message = capfd.readouterr().err
    assert "version 3.1.0 is installed" in message
    assert "pip install 'lockstep-dp[deepmd]'" in message
