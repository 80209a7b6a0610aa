"""`dp plot`: pictures of learning curves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.observe.lcurve import LearningCurve
from lockstep.observe.plots import Run, draw, read_runs, smooth


def write_curve(path: Path, steps: Sequence[int] = (1, 10, 100), validation: bool = True) -> None:
    with LearningCurve(path, ("rmse", "rmse_e", "rmse_f"), validation) as curve:
        for step in steps:
            errors = {"rmse": 10.0 / step, "rmse_e": 0.1 / step, "rmse_f": 1.0 / step}
            curve.write(step, 1e-3, errors, errors if validation else None)


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_suffix_says_what_is_drawn(dp: Callable, tmp_path: Path, name: str, start: bytes) -> None:
    write_curve(tmp_path / "lcurve.out")
    assert dp("plot", "lcurve.out", "-o", name).code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


def test_every_error_has_a_panel_with_its_unit(tmp_path: Path) -> None:
    write_curve(tmp_path / "lcurve.out")
    figure = draw(read_runs([str(tmp_path / "lcurve.out")]))
    assert [axis.get_ylabel() for axis in figure.axes] == ["RMSE (eV/atom)", "RMSE (eV/Å)"]
    assert all(axis.get_xscale() == axis.get_yscale() == "log" for axis in figure.axes)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["validation", "training"]


def test_runs_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("fast", "slow"):
        (tmp_path / name).mkdir()
        write_curve(tmp_path / name / "lcurve.out", validation=False)
    runs = read_runs([str(tmp_path / "fast"), str(tmp_path / "slow" / "lcurve.out")])
    assert [run.name for run in runs] == ["fast", "slow"]
    figure = draw(runs)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fast", "slow", "training"]


def test_steps_may_be_linear(tmp_path: Path) -> None:
    write_curve(tmp_path / "lcurve.out")
    axis = draw(read_runs([str(tmp_path)]), linear=True).axes[0]
    assert (axis.get_xscale(), axis.get_yscale()) == ("linear", "log")


def test_a_power_law_stays_one_when_smoothed() -> None:
    steps = np.arange(1, 10001)
    x, y = smooth(steps, 3.0 / steps, linear=False)
    inner = (x > 3) & (x < 5000)
    np.testing.assert_allclose(y[inner], 3.0 / x[inner], rtol=0.03)
    assert len(x) <= 100


def test_errors_without_labels_have_no_panel() -> None:
    nan = np.full(2, np.nan)
    columns = {"step": np.array([1, 2]), "rmse_e_trn": np.array([0.2, 0.1]), "rmse_f_trn": nan}
    assert len(draw([Run("a", columns)]).axes) == 1


def test_a_curve_without_rows_is_refused(dp: Callable, tmp_path: Path) -> None:
    write_curve(tmp_path / "lcurve.out", steps=())
    assert "no rows yet" in dp("plot", "lcurve.out").err


def test_an_unknown_kind_of_picture_is_refused(dp: Callable, tmp_path: Path) -> None:
    write_curve(tmp_path / "lcurve.out")
    assert dp("plot", "lcurve.out", "-o", "lcurve.txt").code == 2


def test_a_missing_folder_is_made_but_a_file_in_its_place_is_refused(dp: Callable, tmp_path: Path) -> None:
    write_curve(tmp_path / "lcurve.out")
    assert dp("plot", "lcurve.out", "-o", "new/a.png").code == 0
    assert (tmp_path / "new" / "a.png").is_file()
    result = dp("plot", "lcurve.out", "-o", "lcurve.out/a.png")
    assert result.code == 2
    assert "cannot be written" in result.err


def test_matplotlib_may_be_missing(dp: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_curve(tmp_path / "lcurve.out")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = dp("plot", "lcurve.out")
    assert result.code == 2
    assert "pip install 'lockstep-dp[plot]'" in result.err
