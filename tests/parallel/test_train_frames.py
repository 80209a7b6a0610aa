"""One frame over several ranks: the same training as on one rank, by the real loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copper import curve, largest_difference, logged, train_on_threads, weights, write_copper
from jobs import dp, mpirun, run_in, torchrun

from lockstep.errors import UserError
from lockstep.observe.budget import read_budget
from runs import COPPER, make_frames, write_frames

LABELS = {
    "loss__start_pref_v": 0.1,
    "loss__limit_pref_v": 1.0,
    "learning_rate__scale_by_worker": "none",
}
SHARED_SEL = {
    "type": "se_atten",
    "sel": 40,
    "attn_layer": 0,
    "rcut": 4.0,
    "rcut_smth": 2.0,
    "neuron": [4, 8],
    "seed": 1,
}


def train_shared(folder: Path, ranks: int, per_frame: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    file = write_copper(folder, **LABELS, training__ranks_per_frame=per_frame, **changes)
    monkeypatch.chdir(folder)
    train_on_threads(file, ranks)
    return folder


@pytest.mark.parametrize("descriptor", [None, SHARED_SEL], ids=["se_e2_a", "se_atten"])
def test_any_number_of_ranks_per_frame_trains_the_same(tmp_path, monkeypatch, descriptor):
    changes = {} if descriptor is None else {"model__descriptor": descriptor}
    alone = train_shared(tmp_path / "1", 1, 1, monkeypatch, **changes)
    for size in (2, 3, 4):
        shared = train_shared(tmp_path / str(size), size, size, monkeypatch, **changes)
        assert largest_difference(weights(alone), weights(shared)) < 1e-10
        assert (curve(alone) == curve(shared)).all()


def labelled_system(folder: Path) -> None:
    """Mixed-type frames, some of them padded, with every label and parameter that a training may use."""
    rng, types, n_frames = np.random.default_rng(4), (0, 0, 1, 1, 0, 1, 0), 8
    frames = make_frames(n_frames, types, seed=4)
    real = np.tile(types, (n_frames, 1))
    real[::3, -1] = -1
    frames |= {
        "real_atom_types": real,
        "fparam": rng.normal(size=(n_frames, 2)),
        "aparam": rng.normal(size=(n_frames, len(types))),
        "atom_pref": rng.uniform(0.5, 2.0, (n_frames, len(types))),
    }
    write_frames(folder, frames, [0] * len(types), ("A", "B"))


EVERY_LABEL = {
    **{f"loss__{when}_pref_{term}": 1.0 for when in ("start", "limit") for term in ("ae", "pf")},
    "model__type_map": ["A", "B"],
    "model__fitting_net__numb_fparam": 2,
    "model__fitting_net__numb_aparam": 1,
    "training__training_data": {"systems": ["mixed"], "batch_size": 3},
    "training__validation_data": {"systems": ["mixed"], "batch_size": 2, "numb_btch": 2},
    "training__numb_steps": 50,
    "training__disp_freq": 5,
}
EVERY_DESCRIPTOR = {
    "se_e2_a": {"type": "se_e2_a", "sel": [12, 12], "axis_neuron": 4},
    "se_e2_r": {"type": "se_e2_r", "sel": [12, 12]},
    "se_atten": {"type": "se_atten", "sel": 40, "attn_layer": 0, "axis_neuron": 4},
    "hybrid": {
        "type": "hybrid",
        "list": [
            {"type": kind, "sel": [12, 12], "rcut": rcut, "rcut_smth": 2.0, "neuron": [4, 8], "seed": 1}
            for kind, rcut in (("se_e2_a", 4.0), ("se_e2_r", 3.0))
        ],
    },
}


@pytest.mark.parametrize("descriptor", EVERY_DESCRIPTOR)
def test_fifty_steps_with_every_label_are_the_same_on_any_number_of_ranks(tmp_path, monkeypatch, descriptor):
    common = {} if descriptor == "hybrid" else {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "seed": 1}
    changes = {**EVERY_LABEL, "model__descriptor": {**EVERY_DESCRIPTOR[descriptor], **common}}
    sizes = (1, 2, 3, 4) if descriptor == "se_e2_a" else (1, 4)
    for size in sizes:
        labelled_system(tmp_path / str(size) / "mixed")
        train_shared(tmp_path / str(size), size, size, monkeypatch, **changes)
    alone = tmp_path / "1"
    assert curve(alone)[-1, 0] == 50
    for size in sizes[1:]:
        assert (curve(alone) == curve(tmp_path / str(size))).all()
        assert largest_difference(weights(alone), weights(tmp_path / str(size))) < 1e-10


def test_frames_and_batches_can_be_shared_at_once(tmp_path, monkeypatch):
    two = train_shared(tmp_path / "two", 2, 1, monkeypatch)
    four = train_shared(tmp_path / "four", 4, 2, monkeypatch)
    assert largest_difference(weights(two), weights(four)) < 1e-10
    assert (curve(two) == curve(four)).all()


def test_blocks_may_be_empty(tmp_path, monkeypatch):
    """More ranks than most frames have atoms."""
    from runs import tiny_system

    for folder in ("1", "4"):
        (tmp_path / folder).mkdir()
        tiny_system(tmp_path / folder / "few", types=(0, 0, 0), periodic=False)
        tiny_system(tmp_path / folder / "more", types=(0, 0, 1, 0), periodic=False)
    data = {"systems": ["few", "more"], "batch_size": 2}
    changes = {"training__training_data": data, "training__validation_data": data, "model__type_map": ["A", "B"]}
    changes["model__descriptor__sel"] = [8, 8]
    alone = train_shared(tmp_path / "1", 1, 1, monkeypatch, **changes)
    four = train_shared(tmp_path / "4", 4, 4, monkeypatch, **changes)
    assert largest_difference(weights(alone), weights(four)) < 1e-10


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_real_ranks_share_frames_and_a_restart_may_change_how(tmp_path, launcher):
    write_copper(tmp_path / "one", **LABELS)
    write_copper(tmp_path / "two", **LABELS)
    assert run_in(tmp_path / "one", dp("train", "input.json")).code == 0
    command = [*launcher(), *dp("train", "input.json", "--ranks-per-frame", "2")]
    outcome = run_in(tmp_path / "two", command)
    assert outcome.code == 0, outcome.text
    assert "each frame is shared by 2 ranks" in outcome.text
    assert (curve(tmp_path / "one") == curve(tmp_path / "two")).all()
    samples = [[line["samples"] for line in read_budget(tmp_path / name / "budget.jsonl")] for name in ("one", "two")]
    assert samples[0] == samples[1] != []

    again = run_in(tmp_path / "two", dp("train", "input.json", "--restart", "model.ckpt-6"))

    assert again.code == 0, again.text
    assert largest_difference(weights(tmp_path / "one"), weights(tmp_path / "two")) < 1e-10


def test_ranks_that_do_not_divide_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"training\.ranks_per_frame = 2.*3 ranks cannot be divided"):
        train_shared(tmp_path, 3, 2, monkeypatch)
    assert json.loads((tmp_path / "input.json").read_text())["training"]["ranks_per_frame"] == 2
    assert np.all([not path.name.startswith("lcurve") for path in tmp_path.iterdir()])


@pytest.mark.parametrize(("batch_size", "ranks", "chosen"), [(16, 2, 1), (32, 2, 2), (60, 4, 2), (60, 3, 3)])
def test_auto_goes_by_the_atoms_of_a_micro_batch(tmp_path, monkeypatch, batch_size, ranks, chosen):
    """Copper has 32 atoms; a rank is worth it from 512 atoms on."""
    data = {"systems": [str(COPPER / "train_0")], "batch_size": batch_size}
    with logged() as messages:
        train_shared(tmp_path, ranks, "auto", monkeypatch, training__training_data=data, training__numb_steps=1)
    assert f"ranks_per_frame = auto: {chosen} of {ranks}, because" in messages("ranks_per_frame")[0]


def test_more_ranks_than_any_frame_has_atoms_are_refused(tmp_path, monkeypatch):
    with pytest.raises(
        UserError, match=r"training\.ranks_per_frame = 34: no frame has as many atoms: the largest has 32"
    ):
        train_shared(tmp_path, 34, 34, monkeypatch)
    assert np.all([not path.name.startswith("lcurve") for path in tmp_path.iterdir()])
