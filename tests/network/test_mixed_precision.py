"""Products in float32 with weights in float64: what differs from float64 throughout, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from runs import dp, tiny_input, tiny_system, write_input

MIXED = {"training__mixed_precision": {"compute_prec": "float32"}}


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[str, torch.Tensor]:
    folder.mkdir()
    tiny_system(folder / "train", 6)
    write_input(folder, tiny_input(**changes))
    monkeypatch.chdir(folder)
    assert dp("train", "input.json", "--skip-neighbor-stat") == 0
    return dict(load_checkpoint(folder / "model.ckpt").tensors)


@pytest.mark.parametrize("changes", [{}, {"training__acc_freq": 2}, {"model__fitting_net__atom_ener": [-1.0, None]}])
def test_a_training_differs_by_the_digits_of_float32_alone(
    changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = trained(tmp_path / "exact", monkeypatch, **changes)
    mixed = trained(tmp_path / "mixed", monkeypatch, **changes, **MIXED)
    assert {name: t.dtype for name, t in mixed.items()} == {name: t.dtype for name, t in exact.items()}
    weights = [name for name in exact if name.startswith("model.network.fitting.nets")]
    differences = [float((mixed[name] - exact[name]).abs().max()) for name in weights]
    assert 0 < max(differences) < 1e-3


def test_it_needs_something_to_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_input(tmp_path, tiny_input(model__fitting_net__precision="float32", **MIXED))
    assert dp("train", str(tmp_path / "input.json")) == 2
    assert "training.mixed_precision" in capsys.readouterr().err
