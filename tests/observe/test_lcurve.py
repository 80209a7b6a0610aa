"""The learning curve: DeePMD-kit's bytes, and a restarted run's file equal to an uninterrupted one's."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lockstep.errors import UserError
from lockstep.observe.lcurve import LearningCurve, NullCurve, read_lcurve

COLUMNS = ("rmse", "rmse_e", "rmse_f")
NOTE = "# If there is no available reference data, rmse_*_{val,trn} will print nan\n"
# Written by DeePMD-kit 3.2.0 (PyTorch).
WITH_VALIDATION = (
    "# step       rmse_val    rmse_trn    rmse_e_val  rmse_e_trn    rmse_f_val  rmse_f_trn   lr      \n"
    + NOTE
    + "      1      2.00e+01    3.05e+01      1.18e-02    1.23e-02      6.33e-01         nan    1.0e-03\n"
)
TRAINING_ONLY = (
    "# step       rmse_trn    rmse_e_trn    rmse_f_trn   lr      \n"
    + NOTE
    + "1234567      3.05e+01      1.23e-02           nan    3.5e-08\n"
)

TRAIN = {"rmse": 30.5, "rmse_e": 0.0123, "rmse_f": math.nan}
VALID = {"rmse": 20.0, "rmse_e": 0.0118, "rmse_f": 0.633}


def write_rows(path, steps, restart_step=None, validation=False):
    with LearningCurve(path, COLUMNS, validation, restart_step) as curve:
        for step in steps:
            train = {name: step * (index + 1) / 7 for index, name in enumerate(COLUMNS)}
            curve.write(step, 1e-3 / step, train, train if validation else None)


def test_header_and_rows_with_validation_are_those_of_deepmd_kit(tmp_path):
    path = tmp_path / "lcurve.out"
    with LearningCurve(path, COLUMNS, validation=True) as curve:
        curve.write(1, 1e-3, TRAIN, VALID)

    assert path.read_text() == WITH_VALIDATION


def test_header_and_rows_without_validation_are_those_of_deepmd_kit(tmp_path):
    path = tmp_path / "lcurve.out"
    with LearningCurve(path, COLUMNS, validation=False) as curve:
        curve.write(1234567, 3.51e-8, TRAIN)

    assert path.read_text() == TRAINING_ONLY


def test_a_row_can_be_read_as_soon_as_it_is_written(tmp_path):
    with LearningCurve(tmp_path / "lcurve.out", COLUMNS, validation=False) as curve:
        curve.write(5, 1e-3, TRAIN)

        assert list(read_lcurve(tmp_path / "lcurve.out")["step"]) == [5]


@pytest.mark.parametrize("restart_step", [10, 20, 25, 30])
@pytest.mark.parametrize("ending", ["", "     4", "     40     4.1"])
def test_a_restarted_run_leaves_the_file_of_an_uninterrupted_one(tmp_path, restart_step, ending):
    write_rows(tmp_path / "whole.out", range(10, 70, 10))
    path = tmp_path / "lcurve.out"
    write_rows(path, range(10, 40, 10))
    path.write_text(path.read_text() + ending)

    write_rows(path, [step for step in range(10, 70, 10) if step > restart_step], restart_step)

    assert path.read_bytes() == (tmp_path / "whole.out").read_bytes()


def test_a_restart_without_a_file_writes_the_header(tmp_path):
    write_rows(tmp_path / "lcurve.out", [20], restart_step=10)

    assert (tmp_path / "lcurve.out").read_text().startswith("# step ")


def test_a_restart_after_a_header_cut_short_begins_the_file_anew(tmp_path):
    path = tmp_path / "lcurve.out"
    path.write_text("# step       rm")

    write_rows(path, [20], restart_step=10)

    assert list(read_lcurve(path)["step"]) == [20]
    assert [p.name for p in tmp_path.iterdir()] == ["lcurve.out"]


def test_a_failing_restart_loses_no_row(tmp_path, monkeypatch):
    path = tmp_path / "lcurve.out"
    write_rows(path, [10, 20, 30])
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        LearningCurve(path, COLUMNS, validation=False, restart_step=20)

    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["lcurve.out"]


def test_a_file_with_other_columns_is_kept_under_another_name(tmp_path):
    path = tmp_path / "lcurve.out"
    write_rows(path, [10, 20])
    before = path.read_bytes()

    write_rows(path, [30], restart_step=20, validation=True)

    assert (tmp_path / "lcurve.out.old-1").read_bytes() == before
    assert "rmse_val" in read_lcurve(path)


def test_a_link_to_the_file_stays_a_link(tmp_path):
    write_rows(tmp_path / "elsewhere.out", [10, 20])
    link = tmp_path / "lcurve.out"
    link.symlink_to("elsewhere.out")

    write_rows(link, [20], restart_step=10)

    assert link.is_symlink()
    assert list(read_lcurve(link)["step"]) == [10, 20]


def test_a_device_is_written_to_and_not_replaced():
    write_rows("/dev/null", [20], restart_step=10)

    assert Path("/dev/null").is_char_device()


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="learning curve cannot be written"):
        LearningCurve(tmp_path / "file" / "lcurve.out", COLUMNS, validation=False)


def test_the_null_curve_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with NullCurve() as curve:
        curve.write(1, 1e-3, TRAIN, VALID)

    assert list(tmp_path.iterdir()) == []


def test_reading_gives_the_columns_by_name(tmp_path):
    (tmp_path / "lcurve.out").write_text(WITH_VALIDATION)

    columns = read_lcurve(tmp_path / "lcurve.out")

    assert list(columns) == [
        "step", "rmse_val", "rmse_trn", "rmse_e_val", "rmse_e_trn", "rmse_f_val", "rmse_f_trn", "lr",
    ]  # fmt: skip
    assert columns["step"].dtype == np.int64
    assert columns["rmse_e_trn"].tolist() == [0.0123]
    assert math.isnan(columns["rmse_f_trn"][0])


def test_reading_tolerates_headers_repeated_by_restarts_and_a_row_being_written(tmp_path):
    (tmp_path / "lcurve.out").write_text(TRAINING_ONLY + TRAINING_ONLY + "\n 12345")

    assert read_lcurve(tmp_path / "lcurve.out")["step"].tolist() == [1234567, 1234567]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRAINING_ONLY + "what is this\n", r"line 4: expected a row of numbers, found 'what is this'"),
        (TRAINING_ONLY + "  1  2.0\n", r"line 4: the row has 2 numbers, the header names 5 columns"),
        (TRAINING_ONLY + "1.5 1 1 1 1\n", r"line 4: the step 1\.5"),
        ("nothing of the kind", "no header line"),
        ("", "no header line"),
    ],
)
def test_reading_garbage_is_a_user_error(tmp_path, text, message):
    (tmp_path / "lcurve.out").write_text(text)

    with pytest.raises(UserError, match=message):
        read_lcurve(tmp_path / "lcurve.out")


def test_reading_a_missing_or_binary_file_is_a_user_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    for name in ("missing", "binary"):
        with pytest.raises(UserError, match="cannot be read as a learning curve"):
            read_lcurve(tmp_path / name)
