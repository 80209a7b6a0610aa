"""What every section of the input file has in common: value types, aliases, tags, checks between keys."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# Editors find the schema of a file by a key of their own, which says nothing about the run.
_COMMENT = re.compile(r"^(_|\$schema$)")


def is_comment(key: str) -> bool:
    """Whether a key, at any level, is there for the reader only."""
    return _COMMENT.match(key) is not None


@dataclass(frozen=True)
class Aliases:
    """Other names under which a key is accepted."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Tags:
    """How the `type` key of a sub-section chooses its class.

    Attributes:
        default: the tag that holds when `type` is absent; None where it must be given.
        unsupported: tags DeePMD-kit knows and this program does not implement.
        aliases: other spellings of an implemented tag.
        table: the classes to choose from, where the annotation names their base class only.
    """

    default: str | None
    unsupported: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    table: Mapping[str, type[Section]] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic choose from the table as it stands when the section's class is (re)built."""
        if not self.table:
            return handler(source)
        choices = {tag: handler.generate_schema(cls) for tag, cls in self.table.items()}
        return core_schema.tagged_union_schema(choices, discriminator="type")


@dataclass(frozen=True)
class Finding:
    """A mistake found by a section's own checks; `key` is relative to the section ("" for all of it)."""

    key: str
    reason: str
    remedy: str = ""


def wrong(reason: str, remedy: str = "") -> PydanticCustomError:
    """An error for a single value, in words that reach the user unchanged."""
    # The text goes in as context, because pydantic would read braces in a template of its own.
    return PydanticCustomError("words", "{reason}", {"reason": reason, "remedy": remedy})


LARGEST = 10**15
"""Of what is counted: whatever it is multiplied by, 64 bits hold it."""


def _integral(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong("expected an integer", _unquote(value))
    if isinstance(value, float):
        if not value.is_integer():
            raise wrong("expected an integer")
        return int(value)
    return value


def _real(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong("expected a number", _unquote(value))
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise wrong("expected a finite number")
    return real


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise wrong("expected true or false", _as_flag(value))
    return value


def _as_flag(value: Any) -> str:
    """How to write what was meant; YAML's `on` and `yes` come here as text, though nobody has put them in quotes."""
    word = str(value).lower()
    if word in ("true", "false"):
        return f"write {word} without quotes"
    return next((f"write {flag}" for flag, words in _FLAGS.items() if word in words), "")


_FLAGS = {"true": ("on", "yes", "y", "1"), "false": ("off", "no", "n", "0")}


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise wrong("expected text in quotes")
    refuse_strange_letters(value)
    return value


def _file_name(value: Any) -> Any:
    text = os.fsencode(_text(value))
    # Room is left for the number of a step, a suffix, and the mark of a file that is being written.
    if len(text) > _LONGEST_PATH or max(map(len, text.split(b"/"))) > _LONGEST_NAME:
        raise wrong("is too long for the name of a file", f"use names of at most {_LONGEST_NAME} letters")
    return value


_LONGEST_PATH, _LONGEST_NAME = 4000, 200


def refuse_strange_letters(text: str) -> None:
    """Stop at what neither a path nor a log can hold: NUL, and halves of characters (JSON's `\\ud800`)."""
    if "\0" in text:
        raise wrong("holds a NUL character, which no path can", "remove the \\u0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong("holds half a character", "write the character itself, in UTF-8") from None


def _unquote(value: Any) -> str:
    try:
        float(value)
    except (TypeError, ValueError):
        return ""
    return "write the number without quotes" if isinstance(value, str) else ""


# The checks come last in each, which makes them run first, and the limits end up in the JSON Schema.
Number = Annotated[float, BeforeValidator(_real)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_real)]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(_real)]
Fraction = Annotated[float, Field(ge=0, le=1), BeforeValidator(_real)]
PositiveFraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(_real)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_real)]
NaturalNumber = Annotated[int, Field(ge=0, le=LARGEST), BeforeValidator(_integral)]
Count = Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(_integral)]
Width = Annotated[int, Field(ge=1, le=100_000), BeforeValidator(_integral)]
FewNumbers = Annotated[int, Field(ge=0, le=100_000), BeforeValidator(_integral)]
Radius = Annotated[float, Field(ge=0.01, le=1000), BeforeValidator(_real)]
Seconds = Annotated[float, Field(gt=0, le=1e8), BeforeValidator(_real)]
Repeats = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_integral)]
Factor = Annotated[float, Field(gt=0, le=1000), BeforeValidator(_real)]
Passes = Annotated[float, Field(gt=0, le=1e9), BeforeValidator(_real)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, Field(min_length=1), BeforeValidator(_text)]
FileName = Annotated[str, Field(min_length=1), BeforeValidator(_file_name)]
Seed = Annotated[int, Field(ge=0, lt=2**64), BeforeValidator(_integral)] | None


def is_positive(value: Any) -> bool:
    """Whether a raw value is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def is_count(value: Any, largest: int = LARGEST) -> bool:
    """Whether a raw value is a positive integer up to `largest`, possibly written as a float."""
    return is_positive(value) and value % 1 == 0 and value <= largest


class Section(BaseModel):
    """One object `{...}` of the input file: frozen, documented, strict about what it holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    unsupported_keys: ClassVar[dict[str, object]] = {}
    """Keys DeePMD-kit knows here and this program does not implement, with the value that changes nothing."""
    moved: ClassVar[dict[str, str]] = {}
    """Keys of older input files, and the dotted path where they belong now."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Keys of older input files that DeePMD-kit still accepts and ignores."""

    def findings(self) -> Iterator[Finding]:
        """Yield the mistakes that only show when several keys are looked at together."""
        yield from ()

    @model_validator(mode="after")
    def _check(self) -> Any:
        found = list(self.findings())
        if found:
            raise PydanticCustomError("findings", "inconsistent keys", {"findings": found})
        return self

    @classmethod
    def names(cls) -> dict[str, str]:
        """Every accepted spelling of a key -> the name of its field."""
        return {spelling: name for name in cls.model_fields for spelling in (name, *cls.aliases(name))}

    @classmethod
    def aliases(cls, name: str) -> tuple[str, ...]:
        """Return the other spellings of the field `name`."""
        markers = (marker for marker in cls.model_fields[name].metadata if isinstance(marker, Aliases))
        return tuple(alias for marker in markers for alias in marker.names)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Let editors accept aliases and comments too."""
        result = handler.resolve_ref_schema(handler(schema))
        properties = result.setdefault("properties", {})
        for name in cls.model_fields:
            for alias in cls.aliases(name):
                properties[alias] = {**properties[name], "description": f"Another name of `{name}`."}
        result["patternProperties"] = {_COMMENT.pattern: {"description": "A comment."}}
        return result
