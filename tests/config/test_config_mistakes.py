from __future__ import annotations

from pathlib import Path

import pytest
from config_samples import VALID, changed, without

from lockstep.config import parse_input
from lockstep.config.foreign import load_any_input
from lockstep.errors import InputError


def message(data: object) -> str:
    with pytest.raises(InputError) as caught:
        parse_input(data, source="input.json")
    return str(caught.value)


D, F, T, L = "model.descriptor.", "model.fitting_net.", "training.", "learning_rate."
TD = "training.training_data."

BAD_VALUES = [
    # the wrong type
    (T + "numb_steps", "abc", "training.numb_steps = 'abc': expected an integer"),
    (T + "numb_steps", "100", "write the number without quotes"),
    (T + "numb_steps", 1.5, "expected an integer"),
    (T + "numb_steps", True, "expected an integer"),
    (T + "disp_training", 1, "training.disp_training = 1: expected true or false"),
    (T + "disp_training", "true", "write true without quotes"),
    (T + "disp_training", "off", "remedy: write false"),
    (T + "disp_training", 1, "remedy: write true"),
    (T + "disp_file", 3, "training.disp_file = 3: expected text in quotes"),
    (T + "save_ckpt", "", "must not be empty"),
    (D + "rcut", "6.0", "model.descriptor.rcut = '6.0': expected a number"),
    (D + "rcut", True, "expected a number"),
    (D + "rcut", float("inf"), "expected a finite number"),
    (D + "rcut", 10**400, "expected a finite number"),
    (D + "neuron", 25, "model.descriptor.neuron = 25: expected a list"),
    (D + "neuron", [25, "50"], "model.descriptor.neuron[1] = '50': expected an integer"),
    ("loss", [1], "loss = [1]: expected an object"),
    ("model.descriptor", "se_e2_a", "model.descriptor = 'se_e2_a': expected an object"),
    # out of range
    (T + "numb_steps", 0, "training.numb_steps = 0: must be at least 1"),
    (T + "disp_freq", 0, "must be at least 1"),
    (T + "timeout", 0, "must be greater than 0"),
    (T + "numb_epoch", 0, "must be greater than 0"),
    (T + "seed", -1, "must be at least 0"),
    (D + "rcut", -1, "must be at least 0.01"),
    (D + "neuron", [], "needs at least 1 entry, has 0"),
    (D + "neuron", [25, 0, 100], "model.descriptor.neuron[1] = 0: must be at least 1"),
    (L + "start_lr", 0, "must be greater than 0"),
    (L + "decay_rate", 1.5, "must be at most 1"),
    (L + "decay_steps", 0, "must be at least 1"),
    (L + "warmup_ratio", 1.0, "must be less than 1"),
    ("optimizer.adam_beta1", 1.0, "must be less than 1"),
    ("loss.start_pref_e", -0.1, "must be at least 0"),
    # choices and small languages
    (L + "scale_by_worker", "linaer", "did you mean 'linear'?"),
    (D + "activation_function", "swish", "expected one of tanh, relu"),
    (D + "precision", "float16", "model.descriptor.precision = 'float16': not supported yet"),
    (D + "precision", "double", "expected 'default', 'float32' or 'float64'"),
    (D + "sel", "auto:abc", "expected 'auto', 'auto:FACTOR'"),
    (D + "sel", "auto:0.5", "a factor from 1 to 100"),
    (D + "sel", [46, 0], "each entry must be a positive integer"),
    (D + "sel", 46, "a list with one number per type"),
    (TD + "batch_size", "auto:abc", "training.training_data.batch_size = 'auto:abc': expected a positive integer"),
    (TD + "batch_size", 0, "expected a positive integer"),
    (TD + "batch_size", [1, 0], "expected a positive integer"),
    (TD + "batch_size", "max", "'max:N'"),
    (TD + "batch_size", "auto:0", "expected a positive integer"),
    (TD + "batch_size", "mixed:0", "expected a positive integer"),
    (TD + "auto_prob", "prob_size", "expected 'prob_uniform', 'prob_sys_size'"),
    (TD + "auto_prob", "prob_sys_size;0:2", "block '0:2' is not FIRST:END:WEIGHT"),
    (TD + "auto_prob", "prob_sys_size;2:2:1", "block '2:2:1' is empty"),
    (TD + "auto_prob", "prob_sys_size;0:2:0", "a weight above zero"),
    (TD + "sys_probs", [0.5, 0.2], "add up to 0.7, not to 1"),
    (TD + "sys_probs", [0.9, 0.9], "add up to 1.8, not to 1"),
    (TD + "sys_probs", [], "the list is empty"),
    (TD + "systems", [], "the list is empty"),
    (TD + "systems", [1], "a list of paths"),
    ("loss.huber_delta", [1, 2], "three for [energy, force, virial]"),
    (T + "stat_file_mode", "write", "expected 'update' or 'read'"),
    # keys that do not fit each other
    (D + "rcut_smth", 6.0, "model.descriptor.rcut_smth = 6.0: must be smaller than rcut = 6"),
    (D + "axis_neuron", 101, "must not exceed the last width in neuron, 100"),
    (D + "sel", [46], "has 1 entries, but model.type_map has 2 types"),
    (D + "exclude_types", [[0, 2]], "type numbers must be below 2"),
    (D + "exclude_types", [[0]], "model.descriptor.exclude_types[0][1]: required"),
    ("model.type_map", ["O", "O"], "O occurs more than once"),
    ("model.type_map", [], "needs at least 1 entry"),
    (F + "atom_ener", [1.0], "model.fitting_net.atom_ener = [1.0]: has 1 entries"),
    (F + "trainable", [True, False], "needs 3 entries"),
    (F + "trainable", "yes", "expected true, false, or a list"),
    (L + "stop_lr", 1, "learning_rate.stop_lr = 1: larger than start_lr = 0.001"),
    (L + "stop_lr_ratio", 0.1, "stop_lr and stop_lr_ratio exclude each other"),
    (L + "warmup_steps", 100, "must be smaller than training.numb_steps = 100"),
    (T + "numb_epoch", 2, "excludes numb_epoch"),
    (T + "stat_file_mode", "read", "needs stat_file"),
    ("loss.f_use_norm", True, "needs loss_func = 'mae' or use_huber"),
    # keys and types that DeePMD-kit knows and this program does not
    (T + "enable_compile", True, "training.enable_compile = True: not supported yet"),
    (T + "enable_compile", 0, "not supported yet"),
    (T + "mixed_precision", {"compute_prec": "float8"}, "training.mixed_precision"),
    (T + "mixed_precision", {"compute_prec": "float64"}, "leave mixed_precision out"),
    (T + "acc_freq", 10**12, "training.acc_freq = 1000000000000: must be at most"),
    ("optimizer", {"type": "SOAP", "rate_factor": 1e300}, "optimizer.rate_factor = 1e+300: must be at most 1000"),
    (T + "zero_stage", 3, "shard gradients and weights too"),
    (T + "zero_stage", True, "expected 0 or 1"),
    ("model.atom_exclude_types", [0], "model.atom_exclude_types = [0]: not supported yet"),
    ("model.model_dict", {}, "not supported yet"),
    ("model.type", "frozen", "model.type = 'frozen': not supported yet"),
    (D + "type", "dpa2", "model.descriptor.type = 'dpa2': not supported yet"),
    (F + "type", "dipole", "model.fitting_net.type = 'dipole': not supported yet"),
    (F + "use_aparam_as_mask", True, "not supported yet"),
    ("optimizer.type", "LKF", "optimizer.type = 'LKF': not supported yet"),
    ("loss.type", "dos", "loss.type = 'dos': not supported yet"),
    ("loss.start_pref_gf", 1.0, "not supported yet"),
    ("validating", {"full_validation": True}, "there are no validation data"),
    # unknown keys and types
    (D + "rcutt", 6, "model.descriptor.rcutt: unknown key\n  remedy: did you mean 'rcut'?"),
    (T + "numb_stepps", 6, "did you mean 'numb_steps'?"),
    ("lerning_rate", {}, "lerning_rate: unknown key\n  remedy: did you mean 'learning_rate'?"),
    ("zzz", 1, "possible here: learning_rate, loss, model, optimizer, training"),
    (D + "type", "se_e2_b", "model.descriptor.type = 'se_e2_b': unknown type\n  remedy: did you mean 'se_e2_r'?"),
    (L + "type", "Exp", "did you mean 'exp'?"),
    (L + "type", 3, "learning_rate.type = 3: unknown type"),
    (L + "type", [], "learning_rate.type = []: unknown type"),
    # older versions of the input file
    (T + "systems", ["a"], "version 1\n  remedy: move training.systems to training.training_data.systems"),
    (T + "opt_type", "Adam", "move training.opt_type to optimizer.type"),
    (T + "warmup_steps", 10, "move training.warmup_steps to learning_rate.warmup_steps"),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD_VALUES, ids=[f"{p}={str(v)[:20]}" for p, v, _ in BAD_VALUES])
def test_one_bad_value_is_refused_in_words(path: str, value: object, words: str):
    text = message(changed(path, value))
    assert words in text
    assert "mistakes" not in text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("model", "model: required, but not given"),
        ("model.type_map", "model.type_map: required"),
        ("model.descriptor.type", "model.descriptor.type: required, but not given\n  remedy: possible: se_e2_a"),
        ("model.fitting_net", "model.fitting_net: required"),
        ("learning_rate", "learning_rate: required"),
        ("learning_rate.start_lr", "learning_rate.start_lr: required"),
        ("training.training_data", "training.training_data: required"),
        ("training.training_data.systems", "training.training_data.systems: required"),
        ("training.numb_steps", "the length of training is missing"),
    ],
)
def test_what_is_missing_is_named(path: str, words: str):
    assert words in message(without(path))


def test_errors_use_the_users_spelling():
    data = without("training.numb_steps")
    data["training"]["stop_batch"] = "abc"
    assert message(data) == "training.stop_batch = 'abc': expected an integer"


def test_a_key_without_letters_is_named():
    assert "'': unknown key" in message({**VALID, "": {}})


def test_a_key_and_its_alias_exclude_each_other():
    assert "training.stop_batch = 3: given twice: it is another name of 'numb_steps'" in message(
        changed("training.stop_batch", 3)
    )


def test_two_findings_of_one_section_are_both_told():
    data = changed("loss.use_huber", True)
    data["loss"] |= {"relative_f": 1.0, "start_pref_pf": 1.0}
    text = message(data)
    assert "loss.relative_f = 1.0: cannot be combined with use_huber" in text
    assert "loss.start_pref_pf = 1.0: cannot be combined with use_huber" in text


def test_a_loss_of_nothing_is_refused():
    zero = {f"{end}_pref_{x}": 0 for end in ("start", "limit") for x in "ef"}
    assert "nothing to train for" in message(changed("loss", zero))


def test_wsd_cannot_end_at_zero():
    data = changed("learning_rate.type", "wsd")
    data["learning_rate"]["stop_lr"] = 0
    assert "must be greater than 0 for the wsd schedule" in message(data)


def test_all_mistakes_are_told_at_once():
    data = changed("training.disp_freq", "often")
    data["model"]["descriptor"] |= {"rcut": -1, "colour": "red"}
    data["learning_rate"]["start_lr"] = 0
    data["optimizer"] = {"type": "LKF"}
    text = message(data)
    assert text.startswith("input.json: 5 mistakes\n")
    for path in ("training.disp_freq", "model.descriptor.rcut", "model.descriptor.colour", "start_lr", "optimizer"):
        assert path in text


def test_no_more_than_a_screenful_is_told():
    text = message({**VALID, **{f"unknown{i}": i for i in range(30)}})
    assert text.count("unknown key") == 12
    assert text.endswith("and 18 more")


def test_long_values_are_shortened():
    assert len(message(changed("model.descriptor.rcut", "x" * 10_000))) < 300


def test_an_input_of_version_0_is_recognised():
    assert "version 0" in message({"n_neuron": [10], "systems": ["a"], "rcut": 6})


@pytest.mark.parametrize("data", [[], "text", None, 3])
def test_the_top_level_must_be_an_object(data: object):
    assert message(data).startswith("input.json: expected an object")


def test_a_repeated_key_is_told_though_the_text_breaks_off_behind_it(tmp_path: Path):
    path = tmp_path / "input.json"
    path.write_text('{"model": {"rcut": 4, "rcut": 4.0}, "training": [')
    with pytest.raises(InputError, match="key rcut is given twice"):
        load_any_input(path)
