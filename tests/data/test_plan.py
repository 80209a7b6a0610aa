"""From a section of the input file to a plan, and its table in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from system_files import NAMES, make_arrays, simple_system, write_system

from lockstep.data import DataSet, make_plan, summary_lines
from lockstep.tasks.energy.arrays import LABELS


def test_a_plan_settles_sizes_counts_and_probabilities(tmp_path: Path) -> None:
    for number, n_frames in enumerate((10, 25)):
        simple_system(tmp_path / f"s{number}", n_frames, natoms=6)
    plan = make_plan(DataSet(tmp_path, NAMES, LABELS), "auto:12", auto_prob="prob_sys_size")
    assert plan.batch_sizes.tolist() == [2, 2]
    assert plan.counts.tolist() == [5, 13]
    assert plan.probabilities.tolist() == pytest.approx([5 / 18, 13 / 18])
    assert plan.per_epoch == 18
    assert plan.stream(1).fingerprint() == plan.stream(2).fingerprint()


def test_filter_leaves_large_systems_out_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    simple_system(tmp_path / "large", natoms=9)
    simple_system(tmp_path / "small", natoms=3)
    with caplog.at_level(logging.WARNING):
        plan = make_plan(DataSet(tmp_path, NAMES, LABELS), "filter:6", auto_prob="prob_uniform")
    assert [plan.dataset.name(number) for number in range(len(plan.dataset))] == [str(tmp_path / "small")]
    assert plan.batch_sizes.tolist() == [2]
    assert "leaves out 1 of 2 systems" in caplog.text


def test_the_table_shows_every_system_of_a_short_list(tmp_path: Path) -> None:
    simple_system(tmp_path / "water", n_frames=4)
    write_system(tmp_path / ("long" * 20), [make_arrays(6, 3)], [0, 1, 1], nopbc=True)
    plan = make_plan(DataSet(tmp_path, NAMES, LABELS), 2, auto_prob="prob_sys_size")
    lines = summary_lines("training", plan)
    assert lines[0].startswith("---Summary of DataSystem: Training     ---")
    assert lines[1] == "Found 2 System(s):"
    assert lines[3].split()[1:] == [lines[3].split()[1], "3", "2", "3", "6.000e-01", "F"]
    assert lines[4].split()[1:] == ["3", "2", "2", "4.000e-01", "T"] or lines[4].split()[2:] == [
        "3", "2", "2", "4.000e-01", "T",
    ]  # fmt: skip
    assert "10 frames" in lines[5]
    assert {len(line) for line in lines[2:5]} == {len(lines[2])}


def test_the_table_of_many_systems_is_shortened(tmp_path: Path) -> None:
    for number in range(21):
        simple_system(tmp_path / f"s{number:02d}", n_frames=1)
    data = DataSet(tmp_path, NAMES, LABELS)
    lines = summary_lines("validation", make_plan(data, 1, auto_prob="prob_uniform"))
    assert len(lines) == 3 + 5 + 1 + 5 + 2
    assert lines[8].strip() == "... 11 more ..."
    assert "s20" in lines[13]
    whole = summary_lines("validation", make_plan(data.take(range(20)), 1, auto_prob="prob_uniform"))
    assert len(whole) == 3 + 20 + 2
