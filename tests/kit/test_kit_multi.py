"""Several models that share a descriptor, in one stream over the data of all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import ATTENTION, FITTING, TYPES

from lockstep.checkpoint.find import load_checkpoint
from lockstep.observe.lcurve import read_lcurve
from runs import dp, folder_state, tiny_input, tiny_system, write_input


def two_models(folder: Path, **training: Any) -> dict[str, Any]:
    """Two systems, two fitting nets, one descriptor."""
    for number, name in enumerate(("first", "second")):
        tiny_system(folder / name, n_frames=4 + 2 * number, seed=number)
    data = tiny_input()
    branch = {"type_map": "types", "descriptor": "shared", "fitting_net": FITTING}
    data["model"] = {
        "shared_dict": {"types": TYPES, "shared": ATTENTION},
        "model_dict": {"one": branch, "two": copy.deepcopy(branch)},
    }
    data["loss_dict"] = {name: data["loss"] for name in ("one", "two")}
    del data["loss"], data["training"]["training_data"]
    data["training"] |= {
        "numb_steps": 6,
        "save_freq": 3,
        "disp_freq": 1,
        "model_prob": {"one": 0.5, "two": 0.5},
        "data_dict": {
            "one": {"training_data": {"systems": ["first"], "batch_size": 1}},
            "two": {
                "training_data": {"systems": ["second"], "batch_size": 1},
                "validation_data": {"systems": ["first"], "batch_size": 1},
            },
        },
    }
    data["training"] |= training
    return data


def test_two_models_train_and_go_on_bit_for_bit(folder: Path) -> None:
    write_input(folder, two_models(folder))
    assert dp("train", "input.json") == 0
    curve = read_lcurve("lcurve.out")
    drawn = [np.isfinite(curve[f"rmse_f_trn_{name}"]) for name in ("one", "two")]
    assert (drawn[0] ^ drawn[1]).all()
    whole = load_checkpoint("model.ckpt-6")
    shared = [name for name in whole.info["aliases"] if ".descriptor." in name]
    assert shared
    assert dp("train", "input.json", "--restart", "model.ckpt-3") == 0
    again = load_checkpoint("model.ckpt-6")
    assert all(torch.equal(whole.tensors[key], again.tensors[key]) for key in whole.tensors)


def test_a_model_of_several_is_frozen_by_name(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_input(folder, two_models(folder, numb_steps=1))
    assert dp("train", "input.json") == 0
    assert dp("freeze", "-o", "two.dp", "--head", "two") == 0
    assert Path("two.dp").stat().st_size > 0
    assert dp("freeze", "-o", "x.dp") == 2
    assert "--head one" in capfd.readouterr().err


def test_passes_over_the_data_of_each_give_the_length(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = two_models(folder, num_epoch_dict={"one": 1, "two": 0.5})
    del data["training"]["numb_steps"], data["training"]["model_prob"]
    write_input(folder, data)
    assert dp("train", "input.json") == 0
    assert "Start to train 7 steps" in capfd.readouterr().err


WRONG = {
    "loss_dict lacks one": (lambda data: data["loss_dict"].pop("one"), "loss_dict: lacks one"),
    "a strange entry": (
        lambda data: data["training"]["data_dict"].update(three=data["training"]["data_dict"]["one"]),
        "has three",
    ),
    "model_prob lacks one": (lambda data: data["training"]["model_prob"].pop("two"), "training.model_prob"),
    "no such shared part": (
        lambda data: data["model"]["model_dict"]["one"].update(descriptor="nobody"),
        "nobody",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_that_do_not_match(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = two_models(folder)
    change, words = WRONG[name]
    change(data)
    (folder / "input.json").write_text(json.dumps(data))
    before = folder_state(folder)
    assert dp("train", "input.json") == 2
    message = capfd.readouterr().err
    assert words in message
    assert "Traceback" not in message
    assert folder_state(folder) == before
