"""`dp plot` of scaling tests and of detail files: the content of the files says what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.cli.main import main
from lockstep.observe.parity import draw_parity, read_parity, thin


def write_details(folder: Path, prefix: str = "detail") -> None:
    rng = np.random.default_rng(0)
    for suffix, letter, axes in ((".e_peratom.out", "e", [""]), (".f.out", "f", list("xyz"))):
        label = rng.normal(size=(20, len(axes)))
        header = "water: " + " ".join(f"{side}_{letter}{axis}" for side in ("data", "pred") for axis in axes)
        np.savetxt(folder / (prefix + suffix), np.hstack([label, label + 0.5]), header=header)


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_prefix_stands_for_its_detail_files(tmp_path: Path) -> None:
    write_details(tmp_path)
    assert main(["plot", "detail"]) == 0
    assert (tmp_path / "parity.png").read_bytes().startswith(b"\x89PNG")


def test_every_component_counts_and_errors_are_those_of_the_numbers(tmp_path: Path) -> None:
    write_details(tmp_path)
    force = read_parity(tmp_path / "detail.f.out")
    assert force is not None
    assert len(force.label) == 60
    assert (force.rmse, force.mae) == pytest.approx((0.5, 0.5))
    (axis,) = draw_parity([force]).axes
    assert axis.get_xlabel() == "Label (eV/Å)"
    assert "RMSE 0.5 eV/Å" in axis.texts[0].get_text()
    assert axis.get_xlim() == axis.get_ylim()


def test_missing_labels_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.v.out").write_text("# w: data_vxx pred_vxx\nnan 1\nnan 2\n")
    (tmp_path / "a.e.out").write_text("# w: data_e pred_e\nnan 1\n3 2\n")
    assert read_parity(tmp_path / "a.v.out") is None
    parity = read_parity(tmp_path / "a.e.out")
    assert parity is not None
    assert list(parity.label) == [3.0]
    assert main(["plot", "a.v.out"]) == 2


def test_the_worst_points_are_always_shown() -> None:
    label = np.zeros(10_000)
    predicted = np.zeros(10_000)
    predicted[[17, 4321]] = 1.0
    chosen = thin(label, predicted, 500)
    assert {17, 4321} <= set(chosen)
    assert len(chosen) <= 500


def test_a_scaling_test_is_drawn_from_its_folder(inputs: Path, fake: Callable) -> None:
    main(["scaling", "input.json", "-n", "1,2", "--launcher", fake(), "--steps", "10"])
    assert main(["plot", "scaling", "-o", "again.svg"]) == 0
    text = (inputs / "again.svg").read_text()
    assert "predicted, not measured" in text
    assert "Samples per second" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["detail", "other.json"], "one picture shows one kind of thing"),
        (["other.json"], "cannot be read as the result of a scaling test"),
        (["list.json"], "is not the result of a scaling test"),
        (["odd.e.out"], "labels and predictions cannot be told apart"),
        (["detail", "-o", "detail.txt"], "unknown kind of picture"),
    ],
)
def test_mistakes(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_details(tmp_path)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "odd.e.out").write_text("# w: data_e pred_e\n1 2 3\n")
    assert main(["plot", *arguments]) == 2
    assert said in capsys.readouterr().err
