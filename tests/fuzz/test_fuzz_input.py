"""Inputs of every kind, made wrong: read, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import Started, changed_bytes, changed_trees, explained, fuzzed

from lockstep.config.foreign import load_any_input
from lockstep.training.loop import Trainer
from runs import dp, tiny_input, tiny_system

EXAMPLES = Path(__file__).parents[2] / "examples"
INPUTS: list[dict[str, Any]] = [
    tiny_input(),
    *(json.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*/*.json"))),
    tiny_input(
        model__descriptor={"type": "hybrid", "list": [tiny_input()["model"]["descriptor"]] * 2},
        optimizer={"type": "SOAP"},
        training__validation_data={"systems": ["train"], "numb_btch": 2},
        training__mixed_precision={"compute_prec": "float32"},
    ),
    tiny_input(
        model__descriptor={"type": "se_atten_v2", "sel": 20, "rcut": 4.0, "attn_layer": 0},
        learning_rate={"type": "wsd", "start_lr": 0.001, "warmup_ratio": 0.1},
        training__training_data={"systems": ["train"], "batch_size": "auto:8", "sys_probs": [1.0]},
    ),
]
TEXTS = [json.dumps(each, indent=1).encode() for each in INPUTS]
ALIASES = b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n" + b"".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n" % (new, new, *[new - 1] * 9) for new in range(99, 112)
)


def read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with explained():
        load_any_input(path)


@fuzzed(2)
@given(tree=st.sampled_from(INPUTS).flatmap(changed_trees))
def test_inputs_with_wrong_values(tree: dict[str, Any], tmp_path: Path) -> None:
    read(tmp_path / "input.json", json.dumps(tree).encode())


@fuzzed(8)
@given(tree=st.sampled_from(INPUTS).flatmap(changed_trees))
def test_the_same_in_yaml(tree: dict[str, Any], tmp_path: Path) -> None:
    read(tmp_path / "input.yaml", yaml.dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@fuzzed(4)
@given(content=st.sampled_from(TEXTS).flatmap(changed_bytes))
@example(content=b"[" * 100_000)
@example(content=b'{"a":' * 100_000)
@example(content=b'{"training": {"numb_steps": ' + b"9" * 10_000 + b"}}")
def test_damaged_texts(content: bytes, tmp_path: Path) -> None:
    read(tmp_path / "input.json", content)


YAMLS = [yaml.dump(each).encode() for each in INPUTS]


@fuzzed(8)
@given(content=st.sampled_from(YAMLS).flatmap(changed_bytes))
@example(content=b"a: &a [*a]")
@example(content=b"model: &m {descriptor: *m}")
@example(content=ALIASES)
@example(content=b"[" * 100_000)
@example(content=b"? [a]\n: 1")
@example(content=b"a: !!python/object:os.system x")
@example(content=b"a: !!set {1, 2}\nb: !!binary aGk=\nc: !!timestamp 2001-01-01\nd: !!int x\ne: !!float y")
def test_damaged_yaml(content: bytes, tmp_path: Path) -> None:
    read(tmp_path / "input.yaml", content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    tiny_system(path / "train")
    return path


@fuzzed(40)
@given(tree=st.sampled_from([INPUTS[0], *INPUTS[-2:]]).flatmap(lambda tree: changed_trees(tree, most=2)))
def test_runs_up_to_their_first_step(
    tree: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Trainer) -> None:
        raise Started

    monkeypatch.chdir(folder)
    monkeypatch.setattr(Trainer, "run", stop)
    (folder / "input.json").write_text(json.dumps(tree))
    try:
        code = dp("train", "input.json", "-v", "ERROR")
    except Started:
        return
    finally:
        said = capfd.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert "error: " in said
