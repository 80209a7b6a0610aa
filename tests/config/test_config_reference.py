from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import pytest
from config_samples import VALID

from lockstep.cli import doc_train_input
from lockstep.config import parse_input
from lockstep.config.reference import input_schema, reference_markdown, sections


def test_every_key_of_the_dump_is_documented():
    documented = {(section.path, key.name) for section in sections() for key in section.keys}
    data = {**VALID, "training": {**VALID["training"], "validation_data": {"systems": "v"}}}

    def walk(section: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
        for name, value in section.items():
            yield path, name
            if isinstance(value, dict):
                yield from walk(value, f"{path}.{name}".lstrip("."))

    assert set(walk(parse_input(data).dump(), "")) <= documented


def test_markdown_tells_type_default_aliases_and_meaning():
    text = reference_markdown()
    assert "## model.descriptor (type se_e2_a)" in text
    assert "- `rcut` (number (at least 0.01, at most 1000), default `6.0`): Cut-off radius in angstrom." in text
    assert "Also: `stop_batch`, `num_step`, `num_steps`, `numb_step`." in text
    assert "- `type` (`cosine`, required)" in text
    assert '- `type` (`exp`, default `"exp"`)' in text


def test_schema_accepts_aliases_and_comments():
    definitions = input_schema()["$defs"]
    training = definitions["TrainingConfig"]
    assert training["additionalProperties"] is False
    assert training["properties"]["stop_batch"]["anyOf"] == training["properties"]["numb_steps"]["anyOf"]
    assert list(training["patternProperties"]) == [r"^(_|\$schema$)"]
    assert definitions["SeE2AConfig"]["properties"]["type"]["enum"] == ["se_e2_a", "se_a"]


def test_schema_of_a_union_needs_the_type_except_for_the_default():
    definitions = input_schema()["$defs"]
    assert "type" in definitions["CosineLearningRate"]["required"]
    assert "type" not in definitions["ExpLearningRate"]["required"]


def test_schema_has_the_limits():
    assert input_schema()["$defs"]["SeE2AConfig"]["properties"]["rcut"]["minimum"] == 0.01


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [([], "# Input file"), (["--out-type", "json"], "["), (["--out-type", "json_schema"], "{")],
)
def test_command(arguments: list[str], beginning: str, capsys: pytest.CaptureFixture[str]):
    parser = argparse.ArgumentParser()
    doc_train_input.add_parser(parser.add_subparsers())
    args = parser.parse_args(["doc-train-input", *arguments])
    assert args.run(args) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(beginning)
    if arguments:
        json.loads(printed)
