"""What a model's constants are taken from: energies of all frames, a share of the rows for every type."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from lockstep.config import parse_input
from lockstep.config.descriptors import settled_sel
from lockstep.data import DataSet, Plan, make_plan
from lockstep.geometry import PairCache
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.launchers import alone
from lockstep.tasks.energy import sampling
from lockstep.tasks.energy.arrays import energy_arrays
from lockstep.tasks.energy.statfile import fingerprint
from lockstep.tasks.energy.survey import Survey, run_survey
from runs import tiny_input, tiny_system, write_frames

NAMES = ("A", "B", "C")


def config_of(**changes: object):
    return parse_input(
        tiny_input(**{"model__type_map": list(NAMES), "model__descriptor__sel": [24, 24, 24], **changes})
    )


def plan_of(folder: Path, **changes: object) -> Plan:
    model = config_of(**changes).model
    return make_plan(DataSet(folder, NAMES, energy_arrays(model.fitting_net)), 1, auto_prob="prob_sys_size")


def survey_of(folder: Path, *, all_frames: bool = True, **changes: object) -> Survey:
    plan = plan_of(folder, **changes)
    return run_survey(
        plan, config_of(**changes).model, PairCache(1 << 24), SoloGroup(alone.detect({})), all_frames=all_frames
    )


def system(folder: Path, n_frames: int, types: tuple[int, ...] = (0, 0, 1), energy: float = 0.0) -> Path:
    """Frames whose energies are told apart easily: number + `energy`."""
    rng = np.random.default_rng(n_frames)
    coord = np.arange(len(types))[:, None] * [2.0, 0.3, 0.1] + rng.normal(0, 0.05, (n_frames, len(types), 3))
    frames = {"coord": coord.reshape(n_frames, -1), "energy": energy + np.arange(n_frames, dtype=float)}
    return write_frames(folder, frames, types, NAMES)


def bias_of(survey: Survey) -> np.ndarray:
    return survey.energy.bias((), None)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were data for hours."""
    monkeypatch.setattr(sampling, "_PATIENCE", 0.01)


@pytest.mark.parametrize("all_frames", [True, False])
@pytest.mark.usefixtures("impatient")
def test_the_energy_bias_is_that_of_all_frames_of_one_long_system(tmp_path: Path, all_frames: bool) -> None:
    system(tmp_path / "long", 3000, (0,), energy=5.0)
    survey = survey_of(tmp_path, all_frames=all_frames)
    assert bias_of(survey)[0] == pytest.approx(5.0 + 2999 / 2, rel=1e-12)
    assert survey.rows[0].sums[0, 0] == 10  # data_stat_nbatch micro-batches of one frame


@pytest.mark.usefixtures("impatient")
def test_a_type_in_a_single_system_of_many_has_its_bias_and_its_rows(tmp_path: Path) -> None:
    for number in range(200):
        system(tmp_path / f"s{number:03d}", 2, (0, 0, 1), energy=2 * -3.0 + 7.0)
    system(tmp_path / "s100b", 2, (0, 1, 2), energy=-3.0 + 7.0 + 40.0)
    survey = survey_of(tmp_path)
    np.testing.assert_allclose(bias_of(survey)[2], 40.0 + 0.5 - bias_of(survey)[:2] @ [1, 1] + 4, atol=0.6)
    assert survey.rows[0].sums[2, 0] == 2
    assert (survey.max_count >= 1).all()


@pytest.mark.usefixtures("impatient")
def test_a_type_in_few_frames_of_a_mixed_system_has_its_bias_and_its_rows(tmp_path: Path) -> None:
    n_frames, rare = 2000, [777, 1501, 1999]
    types = np.tile([0, 0, 1, -1], (n_frames, 1))
    types[rare, 3] = 2
    own = np.array([-3.0, 7.0, 40.0])
    rng = np.random.default_rng(0)
    coord = np.arange(4)[:, None] * [2.0, 0.3, 0.1] + rng.normal(0, 0.05, (n_frames, 4, 3))
    frames = {
        "coord": coord.reshape(n_frames, -1),
        "energy": np.where(types >= 0, own[types], 0).sum(axis=1),
        "real_atom_types": types,
    }
    write_frames(tmp_path / "mixed", frames, [0] * 4, NAMES)
    survey = survey_of(tmp_path)
    assert survey.energy.gram[2, 2] == 3
    assert bias_of(survey)[2] == pytest.approx(40.0, abs=1e-6)
    assert survey.rows[0].sums[2, 0] == 3


def test_rows_take_part_by_data_stat_nbatch_and_batch_size(tmp_path: Path) -> None:
    system(tmp_path / "a", 500, (0, 0, 1))
    system(tmp_path / "b", 3, (0, 1, 1))
    assert survey_of(tmp_path, all_frames=False, model__data_stat_nbatch=7).rows[0].sums[:, 0].tolist() == [17, 13, 0]


def test_rows_of_many_systems_come_from_many_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        system(tmp_path / f"s{number:03d}", 10)
    monkeypatch.setattr(sampling, "_PATIENCE", 0.3)
    rows = sampling.row_frames(plan_of(tmp_path), 10, {})
    assert 200 < len(rows) < 300
    assert len(np.unique(rows // 10)) > 150
    assert len(np.unique(rows % 10)) == 10


def test_atoms_that_only_pad_a_frame_have_no_parameters(tmp_path: Path) -> None:
    types = np.array([[0, 1, -1], [0, 1, 1]])
    frames = {
        "coord": np.tile(np.arange(9.0), (2, 1)),
        "energy": np.zeros(2),
        "real_atom_types": types,
        "aparam": np.where(types >= 0, 4.0, 1e6),
    }
    write_frames(tmp_path / "mixed", frames, [0] * 3, NAMES)
    survey = survey_of(tmp_path, model__fitting_net__numb_aparam=1)
    assert survey.parameters.sums.tolist() == [[5.0, 20.0, 80.0]]


def test_frame_parameters_of_all_frames_count(tmp_path: Path) -> None:
    frames = {"coord": np.tile(np.arange(9.0), (50, 1)), "energy": np.zeros(50), "fparam": np.arange(50.0)}
    write_frames(tmp_path / "a", frames, [0, 0, 1], NAMES)
    survey = survey_of(tmp_path, all_frames=False, model__fitting_net__numb_fparam=1)
    assert survey.parameters.sums[0, :2].tolist() == [50, 49 * 25]


def test_truly_huge_data_are_looked_at_evenly_with_every_composition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(60):
        system(tmp_path / f"s{number:02d}", 5, (0, 0, 1) if number != 33 else (0, 2, 1))
    monkeypatch.setattr(sampling, "_LIGHT_PATIENCE", 20 * sampling._PER_SYSTEM)
    with caplog.at_level(logging.INFO, logger="lockstep"):
        survey = survey_of(tmp_path)
    assert "energies and compositions of 22 of 300 frames" in caplog.text
    assert "environments of all 300 frames (data_stat_nbatch = 10)" in caplog.text
    assert survey.energy.gram[2, 2] >= 1


def test_the_fingerprint_of_statistics_knows_every_energy(tmp_path: Path) -> None:
    tiny_system(tmp_path / "train", 40)
    config = config_of(model__data_stat_nbatch=2)
    before = fingerprint(config, plan_of(tmp_path), False)
    file = tmp_path / "train" / "set.000" / "energy.npy"
    energies = np.load(file)
    energies[17] += 1e-9
    np.save(file, energies)
    assert fingerprint(config, plan_of(tmp_path), False) != before


@pytest.mark.parametrize(("count", "slots"), [(44, 48), (45, 52), (40, 44), (1, 4), (0, 4), (-1, 4)])
def test_sel_by_counting(count: int, slots: int) -> None:
    assert settled_sel("auto", count) == slots
