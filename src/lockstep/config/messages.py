"""pydantic's errors in plain words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lockstep.config.problem import NO_VALUE, Problem
from lockstep.config.section import Finding
from lockstep.config.walk import Location, Walk

_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda limit: f"must be greater than {limit['gt']:g}",
    "greater_than_equal": lambda limit: f"must be at least {limit['ge']:g}",
    "less_than": lambda limit: f"must be less than {limit['lt']:g}",
    "less_than_equal": lambda limit: f"must be at most {limit['le']:g}",
    "string_too_short": lambda limit: "must not be empty",
    "too_short": lambda limit: _entries("at least", limit["min_length"], limit["actual_length"]),
    "too_long": lambda limit: _entries("at most", limit["max_length"], limit["actual_length"]),
    "tuple_type": lambda limit: "expected a list [...]",
    "model_type": lambda limit: "expected an object {...}",
    "model_attributes_type": lambda limit: "expected an object {...}",
    "literal_error": lambda limit: f"expected {limit['expected']}",
}


def _entries(bound: str, wanted: int, found: int) -> str:
    return f"needs {bound} {wanted} {'entry' if wanted == 1 else 'entries'}, has {found}"


def translate(error: ValidationError, walk: Walk, clean: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problems behind pydantic's `error`, without those in parts the walk gave up on."""
    every = error.errors()
    for details in every:
        location = _without_tags(details["loc"], clean)
        if details["type"] == "too_short" and any(other["loc"][:-1] == details["loc"] for other in every):
            continue  # Only what is right is counted, and what is wrong is told already.
        if not any(location[: len(place)] == place for place in walk.abandoned):
            yield from _problems(details, location, walk)


def _problems(details: ErrorDetails, location: Location, walk: Walk) -> Iterator[Problem]:
    context = details.get("ctx", {})
    path = walk.path(location)
    if details["type"] == "findings":
        for finding in context["findings"]:
            yield _problem_of(finding, details["input"], location, walk)
    elif details["type"] == "words":
        yield Problem(path, context["reason"], details["input"], context["remedy"])
    elif details["type"] == "missing":
        # The second entry of a pair is "missing" too; a section would show its whole content as the value.
        yield Problem(path, "required, but not given")
    elif details["type"] in _WORDS:
        yield Problem(path, _WORDS[details["type"]](context), details["input"], _meant(details))
    else:
        yield Problem(path, details["msg"], details["input"])


def _problem_of(finding: Finding, section: Any, location: Location, walk: Walk) -> Problem:
    keys: Location = tuple(int(key) if key.isdecimal() else key for key in finding.key.split(".") if key)
    value = section
    for key in keys:
        try:
            value = value[key]
        except (LookupError, TypeError):
            value = NO_VALUE
    return Problem(walk.path((*location, *keys)), finding.reason, value if keys else NO_VALUE, finding.remedy)


def _meant(details: ErrorDetails) -> str:
    """Advice for a misspelt choice."""
    if details["type"] != "literal_error" or not isinstance(details["input"], str):
        return ""
    choices = re.findall(r"'(\w+)'", details["ctx"]["expected"])
    close = difflib.get_close_matches(details["input"].lower(), choices, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _without_tags(location: Location, clean: dict[str, Any]) -> Location:
    """Drop the type tags that pydantic adds to the location inside a union of sections."""
    kept: list[str | int] = []
    value: Any = clean
    for part in location:
        if isinstance(value, dict) and part not in value and part == value.get("type"):
            continue
        kept.append(part)
        try:
            value = value[part]
        except (LookupError, TypeError):
            value = None
    return tuple(kept)
