"""The .dp file itself: exact both ways, and refused in words when it is damaged or of another kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.checkpoint.format import encode, freeze
from lockstep.errors import CheckpointError, UserError
from lockstep.interop.deepmd import load_dp, save_dp
from lockstep.interop.exchange import Tree, is_exchange_file, read_tree, write_tree
from lockstep.interop.loading import load_potential
from potentials import KINDS, VARIANTS, evaluate, random_frame, random_potential, variant_potential
from runs import dp, tiny_input, tiny_system, write_input


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.dp"
    save_dp(random_potential(fitting={"numb_fparam": 1}), path)
    return path


@pytest.mark.parametrize("name", [*VARIANTS, *KINDS])
def test_a_round_trip_is_exact_to_the_bit(name: str, tmp_path: Path) -> None:
    before = variant_potential(name)
    save_dp(before, tmp_path / "model.dp")
    after = load_dp(tmp_path / "model.dp")
    assert after.type_map == before.type_map
    assert after.cutoffs == before.cutoffs
    saved, loaded = before.state_dict(), after.state_dict()
    assert list(loaded) == list(saved)
    # Rows of radial descriptors have no angular spread, and files no place for one.
    unused = "row_std_angular" if "radial" in name or "hybrid" in name else "nothing"
    assert all(torch.equal(loaded[key], saved[key]) for key in saved if not key.startswith(unused))
    frame = random_frame("triclinic", potential=before)
    assert torch.equal(evaluate(after, frame).force, evaluate(before, frame).force)


RADIAL = {"type": "se_e2_r", "rcut": 4.0, "neuron": [4, 8], "seed": 1}
MISREAD = "DeePMD-kit's PyTorch backend takes it for one with a net for each type"


@pytest.mark.parametrize(("descriptor", "told"), [
    (RADIAL, True),
    (RADIAL | {"type_one_side": True}, False),
    ({"type": "hybrid", "list": [RADIAL | {"sel": "auto", "type_one_side": True}, RADIAL | {"sel": "auto"}]}, True),
    ({}, False),
])  # fmt: skip
def test_what_deepmd_kit_would_misread_is_told(
    descriptor: dict[str, object], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """When the training begins, and when the model is written."""
    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train")
    settings = tiny_input(training__numb_steps=2)
    if descriptor:
        settings["model"]["descriptor"] = {"sel": "auto"} | descriptor if "list" not in descriptor else descriptor
    write_input(tmp_path, settings)
    assert dp("train", "input.json") == 0
    assert (MISREAD in capfd.readouterr().err) == told
    assert dp("freeze", "-o", "model.dp") == 0
    assert ("model.dp: se_e2_r with type_one_side = false has" in capfd.readouterr().err) == told


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_round_trip_keeps_the_precision(precision: str, tmp_path: Path) -> None:
    change = {"precision": precision}
    before = random_potential(change, change)
    save_dp(before, tmp_path / "model.dp")
    after = load_dp(tmp_path / "model.dp")
    for a, b in zip(before.parameters(), after.parameters(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_a_round_trip_keeps_what_is_frozen(tmp_path: Path) -> None:
    before = random_potential({"trainable": False}, {"trainable": [True, False, True]})
    save_dp(before, tmp_path / "model.dp")
    after = load_dp(tmp_path / "model.dp")
    flags = [[weight.requires_grad for weight in p.parameters()] for p in (before, after)]
    assert flags[0] == flags[1]


def test_an_exchange_file_is_known_by_its_content(model: Path, tmp_path: Path) -> None:
    renamed = model.rename(tmp_path / "no_suffix")
    assert is_exchange_file(renamed)
    other = tmp_path / "text.dp"
    other.write_text("not a model")
    assert not is_exchange_file(other)
    assert not is_exchange_file(tmp_path / "missing.dp")


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load_dp(path)
    assert caught.value.where == str(path)
    assert "\n" not in caught.value.reason
    return caught.value


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such" in refused(tmp_path / "model.dp").reason


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_files_of_another_kind_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.dp"
    path.write_bytes(content)
    assert "damaged" in refused(path).reason


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
def test_truncated_files_are_refused(part: float, model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[: int(len(data) * part)])
    assert "damaged" in refused(model).reason


def test_hdf5_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.dp"
    with h5py.File(path, "w") as file:
        file["coord"] = np.zeros(3)
    assert "exchange format" in refused(path).reason


def test_a_missing_array_is_refused(model: Path) -> None:
    with h5py.File(model, "a") as file:
        del file["variable_0003"]
    assert "variable_0003" in refused(model).reason


def test_a_broken_tree_is_refused(model: Path) -> None:
    with h5py.File(model, "a") as file:
        file.attrs["json"] = file.attrs["json"][:-10]
    refused(model)


def changed(model: Path, change: Callable[[Tree], object]) -> CheckpointError:
    tree = read_tree(model)
    change(tree["model"])
    write_tree(model, tree)
    return refused(model)


@pytest.mark.parametrize(
    "keys",
    [
        ("type_map",),
        ("descriptor",),
        ("fitting",),
        ("@variables",),
        ("descriptor", "embeddings"),
        ("descriptor", "@variables"),
        ("descriptor", "@variables", "davg"),
        ("fitting", "nets", "networks"),
        ("fitting", "@variables"),
    ],
)
def test_what_is_missing_is_named(keys: tuple[str, ...], model: Path) -> None:
    def remove(tree: Tree) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    assert keys[-1] in changed(model, remove).reason


UNSUPPORTED: dict[str, tuple[tuple[str, ...], object]] = {
    "linear_ener": (("type",), "linear_ener"),
    "se_e3": (("descriptor", "type"), "se_e3"),
    "compressed": (("descriptor", "compress"), {"min_nbor_dist": 0.9}),
    "spin": (("descriptor", "spin"), {"use_spin": [True, False]}),
    "exp_switch": (("descriptor", "env_mat", "use_exp_switch"), True),
    "dipole": (("fitting", "type"), "dipole"),
    "mixed_types": (("fitting", "mixed_types"), True),
    "case_embedding": (("fitting", "dim_case_embd"), 2),
    "aparam_mask": (("fitting", "use_aparam_as_mask"), True),
    "fitting_exclude": (("fitting", "exclude_types"), [1]),
    "atom_exclude": (("atom_exclude_types",), [0]),
    "pair_exclude": (("pair_exclude_types",), [[0, 1]]),
}


@pytest.mark.parametrize(("keys", "value"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_other_kinds_of_models_are_refused_with_a_remedy(keys: tuple[str, ...], value: object, model: Path) -> None:
    def put(tree: Tree) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    error = changed(model, put)
    assert "not supported yet" in error.reason
    assert "se_e2_a" in error.remedy


def test_a_model_made_of_others_is_refused_by_its_type(model: Path) -> None:
    def compose(tree: Tree) -> None:
        del tree["descriptor"], tree["fitting"]
        tree["type"] = "zbl"

    assert "'zbl'" in changed(model, compose).reason


def test_values_out_of_range_are_refused(model: Path) -> None:
    def put(tree: Tree) -> None:
        tree["descriptor"]["rcut"] = -1.0

    assert "rcut" in changed(model, put).reason


def first_layer(tree: Tree) -> Tree:
    layer: Tree = tree["fitting"]["nets"]["networks"][0]["layers"][0]["@variables"]
    return layer


def test_arrays_of_another_shape_are_refused(model: Path) -> None:
    def transpose(tree: Tree) -> None:
        first_layer(tree)["w"] = first_layer(tree)["w"].T

    assert "shape" in changed(model, transpose).reason


def test_a_net_too_few_is_refused(model: Path) -> None:
    changed(model, lambda tree: tree["fitting"]["nets"]["networks"].pop())


def test_a_missing_time_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.dp"
    save_dp(random_potential({"neuron": [4, 4], "resnet_dt": True}), path)

    def forget(tree: Tree) -> None:
        tree["descriptor"]["embeddings"]["networks"][0]["layers"][1]["@variables"]["idt"] = None

    assert "idt" in changed(path, forget).reason


@pytest.mark.parametrize(
    ("name", "index"), [("davg", (0, 2, 0)), ("dstd", (1, 3, 0)), ("davg", (0, 0, 2)), ("dstd", (0, 0, 1))]
)
def test_statistics_that_differ_between_slots_are_refused(name: str, index: tuple[int, ...], model: Path) -> None:
    def disturb(tree: Tree) -> None:
        tree["descriptor"]["@variables"][name][index] += 0.01

    assert "slots" in changed(model, disturb).reason


def test_a_bias_in_the_fitting_net_counts(model: Path) -> None:
    """Older files keep the energy bias there."""
    expected = load_dp(model).network.bias
    tree = read_tree(model)
    output, fitting = tree["model"]["@variables"], tree["model"]["fitting"]["@variables"]
    fitting["bias_atom_e"], output["out_bias"] = output["out_bias"].reshape(-1, 1), np.zeros((1, 2, 1))
    write_tree(model, tree)
    assert torch.equal(load_dp(model).network.bias, expected)


def test_nothing_is_left_behind_when_a_file_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "model.dp"
    target.mkdir()
    with pytest.raises(UserError, match=r"model\.dp"):
        save_dp(random_potential(), target)
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_says_who_wrote_it(model: Path) -> None:
    with h5py.File(model) as file:
        tree = json.loads(file.attrs["json"])
    assert tree["software"] == "lockstep"
    assert tree["model_def_script"]["type_map"] == ["O", "H"]


UNUSABLE = {
    "NaN weights": (("model", "fitting", "nets", "networks", 0, "layers", 0, "@variables", "w"), np.nan, "hold nan"),
    "infinite weights": (
        ("model", "descriptor", "embeddings", "networks", 0, "layers", 1, "@variables", "b"),
        np.inf,
        "hold inf",
    ),
    "NaN bias": (("model", "@variables", "out_bias"), np.nan, "network.bias hold nan"),
    "NaN parameter mean": (("model", "fitting", "@variables", "fparam_avg"), np.nan, "hold nan"),
    "no spread": (("model", "descriptor", "@variables", "dstd"), 0.0, "the spread row_std_radial .* is 0"),
    "negative spread": (("model", "descriptor", "@variables", "dstd"), -1.0, "the spread row_std_radial .* is -1"),
    "complex weights": (
        ("model", "descriptor", "embeddings", "networks", 0, "layers", 0, "@variables", "w"),
        1j,
        "real",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_models_that_cannot_compute_are_refused(name: str, model: Path) -> None:
    keys, value, message = UNUSABLE[name]
    tree = read_tree(model)
    node = tree
    for key in keys[:-1]:
        node = node[key]
    array = node[keys[-1]]
    node[keys[-1]] = array + value if np.iscomplexobj(value) else np.full_like(array, value)
    write_tree(model, tree)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_dp(model)
    assert str(model) in caught.value.where
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("network.bias", np.nan, "hold nan"), ("row_std_angular", 0.0, "spread"), ("network.bias", 1j, "complex")],
)
def test_checkpoints_that_cannot_compute_are_refused(
    name: str, value: complex, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train")
    write_input(tmp_path, tiny_input(training__numb_steps=1))
    assert dp("train", "input.json") == 0
    checkpoint = load_checkpoint("model.ckpt")
    tensors = dict(checkpoint.tensors)
    changed = tensors[f"model.{name}"] * 0 + value
    tensors[f"model.{name}"] = changed.to(torch.complex64) if changed.is_complex() else changed
    (tmp_path / "bad.safetensors").write_bytes(encode(freeze(checkpoint.step, tensors, checkpoint.info)))
    with pytest.raises(CheckpointError, match=message):
        load_potential("bad.safetensors")
    assert dp("train", "input.json", "--restart", "bad.safetensors") == 2
