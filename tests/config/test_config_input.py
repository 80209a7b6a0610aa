from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_samples import VALID, at, changed, without
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config import (
    AdamWConfig,
    CosineLearningRate,
    ExpLearningRate,
    Input,
    WsdLearningRate,
    load_input,
    parse_input,
)
from lockstep.errors import InputError


def test_defaults_are_deepmd_kits():
    config = parse_input(VALID)
    assert config.model.descriptor.rcut == 6.0
    assert config.model.descriptor.rcut_smth == 0.5
    assert config.model.fitting_net.resnet_dt is True
    assert (config.loss.start_pref_e, config.loss.limit_pref_e) == (0.02, 1.0)
    assert (config.loss.start_pref_f, config.loss.limit_pref_f) == (1000.0, 1.0)
    assert config.optimizer.type == "Adam"
    assert (config.training.disp_freq, config.training.save_freq, config.training.max_ckpt_keep) == (1000, 1000, 5)
    assert config.training.training_data.batch_size == "auto"
    assert config.training.validation_data is None


def test_stop_lr_has_a_default_only_without_a_ratio():
    assert parse_input(without("learning_rate.stop_lr")).learning_rate.final_lr == 5e-8
    with_ratio = without("learning_rate.stop_lr")
    with_ratio["learning_rate"]["stop_lr_ratio"] = 0.01
    rate = parse_input(with_ratio).learning_rate
    assert rate.stop_lr is None
    assert rate.final_lr == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("path", "value", "field", "expected"),
    [
        ("model.descriptor.type", "se_a", "model.descriptor.type", "se_e2_a"),
        ("loss.type", "ener_hess", "loss.type", "ener"),
        ("training.training_data.auto_prob_style", "prob_uniform", "training.training_data.auto_prob", "prob_uniform"),
        ("training.training_data.sys_weights", [0.5, 0.5], "training.training_data.sys_probs", (0.5, 0.5)),
        ("training.training_data.sys_probs", [0.5, -1], "training.training_data.sys_probs", (0.5, -1.0)),
        ("training.numb_steps", 1e6, "training.numb_steps", 1_000_000),
        ("model.descriptor.rcut", 7, "model.descriptor.rcut", 7.0),
        ("model.descriptor.sel", "auto:1.3", "model.descriptor.sel", "auto:1.3"),
        ("model.descriptor.sel", [46.0, 92], "model.descriptor.sel", (46, 92)),
        ("model.descriptor.activation_function", "Tanh", "model.descriptor.activation_function", "tanh"),
        ("model.descriptor.activation_function", "silut:10.0", "model.descriptor.activation_function", "silut:10.0"),
        ("model.descriptor.exclude_types", [[0, 1]], "model.descriptor.exclude_types", ((0, 1),)),
        ("model.fitting_net.trainable", [True, False, True], "model.fitting_net.trainable_layers", (True, False, True)),
        ("model.fitting_net.trainable", False, "model.fitting_net.trainable_layers", (False, False, False)),
        ("model.fitting_net.atom_ener", [-1.5, None], "model.fitting_net.atom_ener", (-1.5, None)),
        ("training.training_data.systems", "water", "training.training_data.systems", "water"),
        ("training.training_data.batch_size", [1, 2], "training.training_data.batch_size", (1, 2)),
        ("training.training_data.batch_size", "max:64", "training.training_data.batch_size", "max:64"),
        ("training.training_data.batch_size", "filter:64", "training.training_data.batch_size", "filter:64"),
        (
            "training.training_data.auto_prob",
            "prob_sys_size;0:1:0.5;1:2:.5",
            "training.training_data.auto_prob",
            "prob_sys_size;0:1:0.5;1:2:.5",
        ),
        ("loss.huber_delta", [0.1, 0.2, 1], "loss.huber_deltas", (0.1, 0.2, 1.0)),
        ("loss.huber_delta", 0.5, "loss.huber_deltas", (0.5, 0.5, 0.5)),
        ("training.timeout", 5, "training.timeout", 5.0),
        ("training.scale_steps_by_worker", True, "training.scale_steps_by_worker", True),
    ],
)
def test_accepted(path: str, value: object, field: str, expected: object):
    found = at(parse_input(changed(path, value)), field)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("alias", ["stop_batch", "num_step", "num_steps", "numb_step"])
def test_aliases_of_numb_steps(alias: str):
    data = without("training.numb_steps")
    data["training"][alias] = 7
    assert parse_input(data).training.numb_steps == 7


@pytest.mark.parametrize(
    ("path", "value", "cls"),
    [
        ("learning_rate.type", "exp", ExpLearningRate),
        ("learning_rate.type", "cosine", CosineLearningRate),
        ("learning_rate.type", "wsd", WsdLearningRate),
        ("optimizer.type", "AdamW", AdamWConfig),
    ],
)
def test_type_chooses_the_class(path: str, value: str, cls: type):
    section = path.split(".")[0]
    assert type(getattr(parse_input(changed(path, value)), section)) is cls


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("_comment", "water"),
        ("model._comment", {"anything": [1]}),
        ("model.descriptor._comment", None),
        ("training.training_data._old", 3),
        ("$schema", "input.schema.json"),
        ("training.numb_test", 10),
        ("training.training_data.set_prefix", "set"),
        ("training.profiling", False),
        ("training.profiling_file", "timeline.json"),
        ("training.change_bias_after_training", False),
        ("model.atom_exclude_types", []),
        ("model.preset_out_bias", None),
        ("model.data_bias_nsample", 10),
        ("loss.start_pref_gf", 0),
        ("loss.enable_atom_ener_coeff", False),
        ("validating", {}),
        ("validating", {"full_validation": False, "_comment": "later"}),
    ],
)
def test_what_changes_nothing_is_accepted_and_dropped(path: str, value: object):
    assert parse_input(changed(path, value)) == parse_input(VALID)


def test_keys_without_effect_are_mentioned(caplog: pytest.LogCaptureFixture):
    parse_input(changed("training.numb_test", 10))
    assert "training.numb_test" in caplog.text


def test_the_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        parse_input(VALID).training.numb_steps = 3


def test_dump_is_plain_data_that_loads_to_the_same(tmp_path: Path):
    config = parse_input(changed("model.fitting_net.atom_ener", [1.0, None]))
    file = tmp_path / "out.json"
    file.write_text(json.dumps(config.dump()))
    assert load_input(file) == config
    assert config.dump()["training"]["disp_file"] == "lcurve.out"
    assert config.dump()["learning_rate"]["type"] == "exp"


def test_yaml_and_json_mean_the_same(tmp_path: Path):
    file = tmp_path / "input.yaml"
    file.write_text(
        """
        model:
          type_map: [O, H]
          descriptor: {type: se_e2_a, sel: [46, 92], neuron: [25, 50, 100], axis_neuron: 16}
          fitting_net: {neuron: [24, 24]}
        learning_rate: {start_lr: 1e-3, stop_lr: 1e-8}
        training:
          training_data: {systems: [water/a, water/b]}
          numb_steps: 100
        """
    )
    assert load_input(file) == parse_input(VALID)


positive = st.floats(1e-6, 1e6)
edits = st.fixed_dictionaries(
    {},
    optional={
        "model.descriptor.rcut": st.floats(0.6, 20),
        "model.descriptor.sel": st.lists(st.integers(1, 500), min_size=2, max_size=2) | st.just("auto"),
        "model.descriptor.precision": st.sampled_from(["default", "float32", "float64"]),
        "model.descriptor.seed": st.none() | st.integers(0, 2**63),
        "model.fitting_net.trainable": st.booleans() | st.lists(st.booleans(), min_size=3, max_size=3),
        "model.fitting_net.atom_ener": st.lists(st.none() | st.floats(-100, 100), min_size=2, max_size=2),
        "learning_rate.type": st.sampled_from(["exp", "cosine", "wsd"]),
        "learning_rate.start_lr": st.floats(1e-8, 1),
        "learning_rate.warmup_steps": st.integers(0, 99),
        "optimizer.type": st.sampled_from(["Adam", "AdamW"]),
        "optimizer.weight_decay": st.floats(0, 1),
        "loss.start_pref_v": positive,
        "loss.huber_delta": positive | st.lists(positive, min_size=3, max_size=3),
        "training.training_data.batch_size": st.integers(1, 64) | st.sampled_from(["auto", "auto:8", "max:9"]),
        "training.validation_data": st.none() | st.just({"systems": "v", "numb_btch": 3}),
        "training.disp_freq": st.integers(1, 10**6),
        "training.timeout": positive,
    },
)


@settings(deadline=None)
@given(edits)
def test_round_trip_of_any_valid_input(changes: dict[str, object]):
    data = json.loads(json.dumps(VALID))
    for path, value in changes.items():
        *parents, last = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    config = parse_input(data)
    assert parse_input(json.loads(json.dumps(config.dump()))) == config


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3)
)


def refusal(data: object) -> str | None:
    try:
        parse_input(data)
    except InputError as error:
        return str(error)
    return None


def _leaves(section: dict[str, object], path: str = "") -> list[str]:
    here = [f"{path}{key}" for key in section]
    below = [_leaves(value, f"{path}{key}.") for key, value in section.items() if isinstance(value, dict)]
    return here + [leaf for leaves in below for leaf in leaves]


@settings(deadline=None)
@given(st.sampled_from(_leaves(parse_input(changed("training.validation_data", {"systems": "v"})).dump())), ANYTHING)
def test_any_value_anywhere_is_accepted_or_refused_in_our_words(path: str, value: object):
    text = refusal(changed(path, value))
    if text is not None:
        assert path.split(".")[0] in text
        for phrase in ("Input should", "validation error", "function-", "Value error", "pydantic"):
            assert phrase not in text


@settings(deadline=None)
@given(ANYTHING)
def test_any_file_content_is_accepted_or_refused(value: object):
    with pytest.raises(InputError):
        parse_input(value)


def test_input_is_exported_typed():
    assert isinstance(parse_input(VALID), Input)
