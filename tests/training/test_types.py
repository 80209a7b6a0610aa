"""An input without `model.type_map` takes the names of the types from its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.checkpoint.find import load_checkpoint
from runs import dp, tiny_input, tiny_system, write_input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny_system(tmp_path / "train")
    write_input(tmp_path, tiny_input(model__type_map=None, training__numb_steps=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_types() -> list[str]:
    return load_checkpoint("model.ckpt-1").info["input"]["model"]["type_map"]


def test_names_of_the_data(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("train", "input.json") == 0
    assert trained_types() == ["A", "B"]
    assert "model.type_map is not given; the data have A, B" in capfd.readouterr().err


def test_numbers_where_the_data_have_no_names(folder: Path) -> None:
    (folder / "train/type_map.raw").unlink()
    assert dp("train", "input.json") == 0
    assert trained_types() == ["type_0", "type_1"]


def test_data_that_are_not_there_are_refused_as_ever(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_input(folder, tiny_input(model__type_map=None, training__training_data__systems=["nowhere"]))
    assert dp("train", "input.json") == 2
    assert "no such system" in capfd.readouterr().err
