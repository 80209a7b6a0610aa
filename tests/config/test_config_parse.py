from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.config.parse import parse_json, parse_yaml, read_file
from lockstep.errors import InputError


def message(parse, text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "in")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"a": 1,\n}', "in, line 1, column 8", "remove the comma"),
        ('{"a": [1, 2,\n  ]}', "line 1, column 12", "remove the comma"),
        ('{\n "a": 1 // one\n}', "line 2, column 9", "JSON has no comments"),
        ('{\n # one\n "a": 1}', "line 2, column 2", "begins with _"),
        ("{\"a\": 'b'}", "line 1, column 7", "use double quotes"),
        ("{'a': 1}", "line 1, column 2", "use double quotes"),
        ('{"a": True}', "line 1, column 7", "write true"),
        ('{"a": None}', "line 1, column 7", "write null"),
        ('{"a": 1\n "b": 2}', "line 2, column 2", "a comma or a closing bracket is missing"),
        ('{"a": {"b": 1}', "line 1, column 15", "the file ends too early"),
        ('{"a": 1}\n}', "line 2, column 1", "after its object was closed"),
        ('{"a" 1}', "line 1, column 6", "expected a colon after the key"),
        ('{"a": }', "line 1, column 7", "expected a value"),
        ('{"a": "b\n"}', "line 1, column 9", "must end in the line"),
        ('{"a": "C:\\water"}', "line 1, column", "backslash"),
        ("{a: 1}", "line 1, column 2", "expected a key in double quotes"),
        ('{"a": NaN}', "line 1, column 7", "NaN is not a number"),
        ('{"NaN": 1,\n "b": -Infinity}', "line 2, column 7", "-Infinity is not a number"),
    ],
)
def test_json_mistakes_are_located_and_explained(text: str, place: str, words: str):
    found = message(parse_json, text)
    assert place in found
    assert words in found


def test_the_line_is_shown_with_a_mark_below_the_place():
    lines = message(parse_json, '{\n\t"a": 1 2\n}').splitlines()
    assert lines[1:3] == ['     "a": 1 2', "            ^"]


def test_long_lines_are_cut():
    assert len(message(parse_json, '{"a": "' + "x" * 10_000 + '" 1}')) < 400


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_json, '{\n"model": {\n\t"rcut": 1,\n\t"x": [{"a": 0}],\n\t"rcut": 2}}'),
        (parse_yaml, "top: 0\nmodel:\n  rcut: 1\n  x: 2\n  rcut: 3\n"),
    ],
)
def test_repeated_keys_are_refused_with_path_and_lines(parse, text: str):
    assert "model.rcut: given more than once, in lines 3 and 5 of in" in message(parse, text)


@pytest.mark.parametrize(("parse", "text"), [(parse_json, '{"_c": 1, "_c": 2}'), (parse_yaml, "_c: 1\n_c: 2")])
def test_comments_may_be_repeated(parse, text: str):
    assert parse(text, "in") == {"_c": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E6", 1e6),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("No", "No"),
        ("yes", "yes"),
        ("true", True),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("auto:32", "auto:32"),
    ],
)
def test_yaml_scalars(text: str, value: object):
    assert parse_yaml(f"a: {text}\n", "in") == {"a": value}


def test_yaml_mistakes_are_located():
    found = message(parse_yaml, "a: 1\nb: [1, 2\nc: 3\n")
    assert "in, line 3, column" in found
    assert "^" in found


def test_yaml_tabs_are_explained():
    assert "indent with spaces" in message(parse_yaml, "a:\n\tb: 1\n")


def test_yaml_never_builds_objects():
    assert "line 1" in message(parse_yaml, "a: !!python/object/apply:os.getcwd []\n")


def test_yaml_that_refers_to_itself_is_harmless():
    assert parse_yaml("a: &x [*x]\n", "in")["a"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "the file is empty"), (b"\xff\xfe\x00", "UTF-8"), (b"[" * 100_000, "nested too deeply")],
)
def test_unreadable_files(tmp_path: Path, content: bytes, words: str):
    file = tmp_path / "input.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_file(file)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere.json: cannot be read: No such file"):
        read_file(tmp_path / "nowhere.json")


def test_a_directory_is_not_an_input(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        read_file(tmp_path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path):
    file = tmp_path / "input.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_file(file) == {"a": 1}


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
@settings(deadline=None)
@given(text=st.text(alphabet='{}[]",:_ab1\n\t\\/.-#&*', max_size=30))
def test_any_text_is_parsed_or_refused(parse, text: str):
    with contextlib.suppress(InputError):
        parse(text, "in")
