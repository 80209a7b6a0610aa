"""From the text of an input file to plain data, with errors that point into the text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lockstep.config.problem import Problem, combine
from lockstep.config.section import is_comment
from lockstep.errors import InputError, in_one_line

_DEEPEST, _MOST_VALUES = 50, 1_000_000
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _RepeatedKeyError(Exception):
    """A key occurs twice in one object."""


class _NotANumberError(Exception):
    """NaN or Infinity, which JSON does not have."""


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: `1e-3` is a number, `No` is an element and not `false`."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (overrides a class attribute of PyYAML)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})$"), list(_first))


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    # PyYAML would read 010 as octal, as version 1.1 of YAML did.
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)


def read_file(path: Path) -> Any:
    """Parse a JSON file, or a YAML file where the suffix is .yaml or .yml."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        if path.is_dir():
            remedy = "name the input file in it"
            raise InputError("cannot be read: it is a folder", where=str(path), remedy=remedy) from error
        remedy = "check the path, and that you may read it"
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    except UnicodeDecodeError as error:
        remedy = "name an input file in JSON or YAML, or save it as UTF-8"
        raise InputError("is not a text file in UTF-8", where=str(path), remedy=remedy) from error
    if not text.strip():
        raise InputError("the file is empty", where=str(path), remedy="name an input file in JSON or YAML")
    parse = parse_yaml if path.suffix.lower() in (".yaml", ".yml") else parse_json
    try:
        data = parse(text, str(path))
    except RecursionError:
        raise _too_deep(str(path)) from None
    _refuse_boundless(data, str(path))
    return data


def _refuse_boundless(data: Any, source: str) -> None:
    """Stop at depths that no section has, and at YAML's aliases where they unfold without end."""
    level, values = [data], 0
    for _ in range(_DEEPEST):
        level = [
            member
            for each in level
            if isinstance(each, dict | list | tuple | set)
            for member in (each.values() if isinstance(each, dict) else each)
        ]
        values += len(level)
        if values > _MOST_VALUES:
            reason = f"unfolds to more than {_MOST_VALUES} values"
            raise InputError(reason, where=source, remedy="name folders of systems, and use fewer aliases")
        if not level:
            return
    raise _too_deep(source)


def _too_deep(source: str) -> InputError:
    return InputError("brackets are nested too deeply", where=source, remedy="check the brackets")


def parse_json(text: str, source: str) -> Any:
    """Parse JSON strictly; `source` names the text in errors."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason, remedy, position = _explain(error)
        raise _syntax_error(text, position, source, reason, remedy) from None
    except ValueError as error:
        # Python refuses to convert integers of thousands of digits.
        raise _unparsed(error, source) from None
    except _RepeatedKeyError as error:
        raise _repeated_in(text, source) or InputError(f"key {error} is given twice", where=source) from None
    except _NotANumberError as error:
        position = _outside_strings(text).find(str(error))
        raise _syntax_error(text, position, source, f"{error} is not a number", "give a finite number") from None


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document of plain data; `source` names the text in errors."""
    loader = _loader(text, source)
    try:
        node = loader.get_single_node()
        repeated = _repeated(node, source) if node is not None else None
        if repeated:
            raise repeated
        return loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or "cannot be parsed"
        raise _syntax_error(text, mark.index if mark else 0, source, reason, _yaml_remedy(reason)) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _unparsed(error, source) from None
    finally:
        loader.dispose()


def _unparsed(error: Exception, source: str) -> InputError:
    return InputError(f"cannot be parsed: {in_one_line(error)}", where=source, remedy="correct or shorten that value")


def _loader(text: str, source: str) -> _Loader:
    try:
        return _Loader(text)
    except yaml.reader.ReaderError as error:
        reason = f"a character that YAML does not allow: {chr(error.character)!r}"
        raise _syntax_error(text, error.position, source, reason, "remove it") from None


def _yaml_remedy(reason: str) -> str:
    return "indent with spaces instead of tabs" if r"'\t'" in reason else ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        times = Counter(key for key, _ in pairs if not is_comment(key))
        for key in (key for key, count in times.items() if count > 1):
            raise _RepeatedKeyError(key)
    return result


def _repeated_in(text: str, source: str) -> InputError | None:
    """Where in a JSON text a key is repeated, unless there is a further mistake behind it."""
    try:
        # Tabs are white space in JSON but not in YAML, whose parser is the one that knows positions.
        node = yaml.compose(text.replace("\t", " "), Loader=_Loader)
    except (yaml.YAMLError, RecursionError):
        return None
    return _repeated(node, source)


def _no_constant(name: str) -> Any:
    raise _NotANumberError(name)


def _repeated(root: yaml.Node, source: str) -> InputError | None:
    problems = [
        Problem(path, f"given more than once, in lines {lines} of {source}", remedy="keep one of them")
        for path, lines in _repetitions(root, "", set())
    ]
    return combine(problems, source) if problems else None


def _repetitions(node: yaml.Node, path: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    # An anchored node may be referred to any number of times, even by itself.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repetitions(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, list[int]] = {}
        for key, value in node.value:
            lines.setdefault(str(key.value), []).append(key.start_mark.line + 1)
            yield from _repetitions(value, f"{path}.{key.value}".lstrip("."), seen)
        for name, places in lines.items():
            if len(places) > 1 and not is_comment(name):
                yield f"{path}.{name}".lstrip("."), " and ".join(map(str, places))


def _explain(error: json.JSONDecodeError) -> tuple[str, str, int]:
    """Return what is wrong, what to do, and where, for the mistakes people make in JSON."""
    rest, before = error.doc[error.pos :].lstrip(), error.doc[: error.pos].rstrip()
    position = len(error.doc) - len(rest)
    comma = len(before) - 1 if before.endswith(",") else position if rest.startswith(",") else -1
    if comma >= 0 and re.match(r",\s*[}\]]", error.doc[comma:]):
        return "a comma before a closing bracket", "remove the comma", comma
    if rest.startswith(("//", "/*", "#")):
        return (
            "JSON has no comments",
            'write a comment as a key that begins with _, such as "_comment": "..."',
            position,
        )
    if rest.startswith("'"):
        return "text in single quotes", 'use double quotes: "..."', position
    if match := re.match(r"(True|False|None)\b", rest):
        return (
            f"{match[0]} is Python, not JSON",
            f"write {({'None': 'null'}).get(match[0], match[0].lower())}",
            position,
        )
    if not rest:
        return "the file ends too early", "close every {, [ and quote", len(error.doc.rstrip())
    if error.msg.startswith("Expecting ',' delimiter"):
        return "a comma or a closing bracket is missing before this", "add what is missing", position
    if error.msg.startswith("Extra data"):
        return "the file goes on after its object was closed", "check the closing brackets", position
    return _SIMPLE.get(error.msg.split(":")[0], error.msg), "", error.pos


_SIMPLE = {
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Expecting ' delimiter": "expected a colon after the key",
    "Expecting '": "expected a colon after the key",
    "Expecting value": "expected a value",
    "Invalid control character at": "a text in quotes must end in the line where it begins",
    "Unterminated string starting at": "this text in quotes has no end",
    "Invalid \\escape": "a backslash in a text must be doubled",
}


def _outside_strings(text: str) -> str:
    return _STRING.sub(lambda match: " " * len(match[0]), text)


def _syntax_error(text: str, position: int, source: str, reason: str, remedy: str) -> InputError:
    """Return an error that shows the line, with a mark under the place."""
    start = text.rfind("\n", 0, position) + 1
    line, column = text.count("\n", 0, position) + 1, position - start + 1
    excerpt = text[start:].split("\n", 1)[0].rstrip()
    left = max(0, column - 60)
    shown, caret = excerpt[left : left + 100], " " * (column - 1 - left)
    excerpt_lines = f"    {shown}\n    {caret}^".replace("\t", " ")
    return InputError(f"{reason}\n{excerpt_lines}", where=f"{source}, line {line}, column {column}", remedy=remedy)
