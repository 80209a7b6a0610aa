"""What a page knows about a folder: the numbers of its files, and nothing of other folders."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run_folders import LOG, make_run, make_scaling, write_budget, write_curve, write_details, write_profile

from lockstep.report.collect import collect, is_empty
from lockstep.report.curves import thin_rows
from lockstep.report.folder import RunFolder
from lockstep.report.logfile import read_log


def page_of(folder: Path) -> dict:
    data = collect(RunFolder(folder))
    # As the page gets it.
    return json.loads(json.dumps(data, allow_nan=False))


def cards_of(page: dict) -> dict[str, str]:
    return {card["label"]: f"{card['value']} {card['unit']}".strip() for card in page["cards"]}


def test_cards_show_the_last_errors_and_the_usual_speed(tmp_path: Path) -> None:
    assert cards_of(page_of(make_run(tmp_path))) == {
        "Steps": "100",
        "Energy RMSE": "10 meV/atom",
        "Force RMSE": "20 meV/Å",
        "Samples per second": "20",
        "Wall time": "0:01:01",
        "Workers": "2",
        "Device": "cpu:0",
    }


def test_curves_have_validation_and_training(tmp_path: Path) -> None:
    curves = page_of(make_run(tmp_path))["curves"]
    assert curves["step"][:3] == [1, 10, 20]
    energy = curves["panels"][0]
    assert [one["name"] for one in energy["series"]] == ["validation RMSE", "training RMSE"]
    assert energy["series"][0]["values"][:2] == [1.0, 0.1]


def test_missing_labels_become_null(tmp_path: Path) -> None:
    (tmp_path / "lcurve.out").write_text("# step rmse_e_trn rmse_f_trn lr\n1 nan 0.5 1e-3\n2 nan nan 1e-3\n")
    (panel,) = page_of(tmp_path)["curves"]["panels"]
    assert panel["title"] == "Force"
    assert panel["series"][0]["values"] == [0.5, None]


def test_a_running_training_has_time_left(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "train.log").unlink()
    write_curve(tmp_path, [1, 10, 20])
    write_budget(tmp_path, [1, 10, 20])
    card = page_of(tmp_path)["cards"][0]
    # 80 steps at 0.2 seconds.
    assert (card["note"], card["progress"]) == ("of 100, 0:00:16 left", 0.2)


def test_the_log_gives_the_systems_even_with_spaces_in_names(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    (table,) = page["systems"]
    assert table == {
        "title": "Training",
        "rows": [["data/a b", "32", "1", "60", "1.000e+00", "T"]],
        "note": "60 frames, 32 to 32 atoms",
    }
    assert page["warnings"] == ["the weather is bad"]


def test_without_a_log_the_input_gives_the_systems(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "train.log").unlink()
    assert page_of(tmp_path)["systems"] == [{"title": "Training", "rows": [["data/a b"]], "note": ""}]


def test_of_a_log_with_a_restart_the_last_training_counts(tmp_path: Path) -> None:
    second = LOG.format(name="again").replace("world size:           2", "world size:           4")
    (tmp_path / "a.log").write_text(LOG.format(name="first") + second)
    found = read_log(tmp_path / "a.log")
    assert found.facts["world size"] == "4"
    assert [table["rows"][0][0] for table in found.systems] == ["again"]


def test_profiles_of_all_ranks_are_added_by_size_of_message(tmp_path: Path) -> None:
    write_profile(tmp_path)
    profile = page_of(tmp_path)["profile"]
    assert [rank["rank"] for rank in profile["ranks"]] == [0, 1]
    (routine,) = profile["routines"]
    assert [size["calls"] for size in routine["sizes"]] == [2, 20]
    assert routine["sizes"][1]["bytes"] == 6_000_010


def test_only_the_newest_job_is_shown(tmp_path: Path) -> None:
    write_profile(tmp_path, "77")
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    write_profile(tmp_path, "8")
    assert page_of(tmp_path)["profile"]["job"] == "8"


def test_predictions_are_sorted_by_label_and_come_in_one_unit(tmp_path: Path) -> None:
    write_details(tmp_path)
    energy, force = page_of(tmp_path)["parity"]
    assert (energy["unit"], force["unit"]) == ("eV/atom", "eV/Å")
    assert force["label"] == sorted(force["label"])
    assert (force["count"], force["rmse"]) == (150, pytest.approx(0.5))


def test_many_ranks_are_summed_up(tmp_path: Path) -> None:
    write_budget(tmp_path, [1, 10], ranks=100)
    series = page_of(tmp_path)["budget"]["ranks"]
    assert {one["name"]: one["values"][0] for one in series} == {
        "slowest rank": 10.0,
        "middle rank": 59.5,
        "fastest rank": 109.0,
    }


def test_a_restart_on_more_workers_leaves_gaps(tmp_path: Path) -> None:
    write_budget(tmp_path, [1], ranks=1)
    first = (tmp_path / "budget.jsonl").read_text()
    write_budget(tmp_path, [10], ranks=2)
    (tmp_path / "budget.jsonl").write_text(first + (tmp_path / "budget.jsonl").read_text())
    assert [one["values"] for one in page_of(tmp_path)["budget"]["ranks"]] == [[10.0, 10.0], [None, 11.0]]


def test_files_still_being_written_do_no_harm(tmp_path: Path) -> None:
    make_run(tmp_path)
    for name in ("out.json", "mpi_profile.77.0.json", "budget.jsonl"):
        path = tmp_path / name
        path.write_text(path.read_text()[:-20])
    page = page_of(tmp_path)
    assert page["budget"]["step"][-1] == 90
    assert len(page["profile"]["ranks"]) == 1
    assert page["input"] == ""


@pytest.mark.parametrize("content", ["[]", '{"training": 3}', "{}", '"text"'])
def test_a_strange_out_json_does_no_harm(tmp_path: Path, content: str) -> None:
    (tmp_path / "out.json").write_text(content)
    write_curve(tmp_path, [1, 2])
    assert cards_of(page_of(tmp_path))["Steps"] == "2"


def test_budgets_without_some_keys_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "budget.jsonl").write_text('{"step": 1}\n{"step": 2, "budget": {"new phase": 1.0}}\n[]\n{}\n')
    assert page_of(tmp_path)["budget"]["phases"][0]["share"] == [0.0, 1.0]


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside")
    run = tmp_path / "run"
    run.mkdir()
    for path in outside.iterdir():
        (run / path.name).symlink_to(path)
    (run / "out.json").unlink()
    (run / "out.json").write_text(json.dumps({"training": {"disp_file": "../outside/lcurve.out"}}))
    page = page_of(run)
    assert not any(page[name] for name in ("curves", "budget", "profile", "parity", "systems", "warnings"))


def test_an_empty_folder_is_empty(tmp_path: Path) -> None:
    assert is_empty(collect(RunFolder(tmp_path)))
    assert not is_empty(collect(RunFolder(make_scaling(tmp_path / "s"))))


def test_a_scaling_test_says_what_is_predicted(tmp_path: Path) -> None:
    page = page_of(make_scaling(tmp_path))
    cards = cards_of(page)
    assert cards["Workers"] == "1, 2, 4"
    assert cards["Speed up"] == f"{4 * 0.021 / 0.024:.2f}"
    assert "not measured" in next(card["note"] for card in page["cards"] if card["label"] == "Predicted")


def test_long_curves_are_thinned_evenly_on_both_kinds_of_axis() -> None:
    steps = np.arange(1, 100_001)
    chosen = steps[thin_rows(steps, 1000)]
    assert len(chosen) <= 1000
    assert (chosen[0], chosen[-1]) == (1, 100_000)
    assert np.sum(chosen <= 100) >= 70
    assert np.diff(chosen).max() <= 210
