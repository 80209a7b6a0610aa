"""The documentation of the input file, made from the sections themselves."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from lockstep.config.input import Input
from lockstep.config.section import Section
from lockstep.config.walk import item_field, section_classes, tags_of

_INTRODUCTION = """\
# Input file

The input file is JSON or, with the suffix `.yaml` or `.yml`, YAML. Keys that begin with `_` are comments, at
any level. A key that is not listed here is refused. So is one that DeePMD-kit knows but this program does not
support yet, unless its value is DeePMD-kit's default, which changes nothing.
"""
_NAMES = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}
_NOT_TOLD = 1e8
"""Limits from here on are met by a slip of the pen only."""
_SIGNS = {Gt: ("above", "gt"), Ge: ("at least", "ge"), Lt: ("below", "lt"), Le: ("at most", "le")}


@dataclass(frozen=True)
class KeyReference:
    """What there is to know about one key."""

    name: str
    type: str
    required: bool
    default: object
    aliases: tuple[str, ...]
    doc: str


@dataclass(frozen=True)
class SectionReference:
    """What there is to know about one section; `tag` is the value of `type` that selects it."""

    path: str
    tag: str | None
    doc: str
    keys: tuple[KeyReference, ...]


def sections() -> Iterator[SectionReference]:
    """Yield all sections, each before those below it."""
    yield from _sections(Input, "", None, tag_required=False)


def _sections(cls: type[Section], path: str, tag: str | None, *, tag_required: bool) -> Iterator[SectionReference]:
    keys = [_key(cls, name) for name in sorted(cls.model_fields, key=lambda name: name != "type")]
    if tag_required:
        keys[0] = replace(keys[0], required=True, default=None)
    yield SectionReference(path, tag, (cls.__doc__ or "").strip(), tuple(keys))
    for name, info in cls.model_fields.items():
        tags, sub_path = tags_of(info), f"{path}.{name}" if path else name
        for sub_tag, sub_class in section_classes(info).items():
            other = tags is not None and sub_tag != tags.default
            yield from _sections(sub_class, sub_path, sub_tag if tags else None, tag_required=other)


def reference_markdown() -> str:
    """Return the reference of all keys in Markdown."""
    return "\n".join([_INTRODUCTION, *(_section_markdown(section) for section in sections())])


def reference_json() -> str:
    """Return the reference of all keys as a JSON list of sections."""
    return json.dumps([asdict(section) for section in sections()], indent=2)


def reference_schema() -> str:
    """Return the JSON Schema of the input file, for editors."""
    return json.dumps(input_schema(), indent=2)


def input_schema() -> dict[str, Any]:
    """Return the JSON Schema of the input file as plain data."""
    schema = Input.model_json_schema(by_alias=False)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Input file of dp train",
    }
    classes: list[type[Section]] = [Input, *_classes_below(Input)]
    for cls in classes:
        for info in cls.model_fields.values():
            _adjust_tags(info, schema["$defs"])
    return schema


def _classes_below(cls: type[Section]) -> Iterator[type[Section]]:
    for info in cls.model_fields.values():
        for sub_class in section_classes(info).values():
            yield sub_class
            yield from _classes_below(sub_class)


def _adjust_tags(info: FieldInfo, definitions: dict[str, Any]) -> None:
    """Accept aliases of tags, and require the tag where leaving it out would mean another class."""
    tags = tags_of(info)
    if tags is None:
        return
    for tag, cls in section_classes(info).items():
        definition = definitions[cls.__name__]
        spellings = [tag, *(alias for alias, meant in tags.aliases if meant == tag)]
        definition["properties"]["type"].pop("const", None)
        definition["properties"]["type"]["enum"] = spellings
        if tag != tags.default:
            definition["required"] = ["type", *definition.get("required", [])]


def _key(cls: type[Section], name: str) -> KeyReference:
    info = cls.model_fields[name]
    tags = tags_of(info)
    if item_field(info) is not None:
        words = "list of objects, each with a type as above"
    else:
        words = "object" if section_classes(info) else type_words(info.annotation, tuple(info.metadata))
    if tags is not None:
        words = f"object with type {' or '.join(section_classes(info))}"
        words += f" (default {tags.default})" if tags.default else ""
    default = None if info.is_required() else _plain(info.default)
    return KeyReference(name, words, info.is_required(), default, cls.aliases(name), _one_line(info.description))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Section) else value


def _one_line(text: str | None) -> str:
    assert text, "every key is documented"
    return " ".join(text.split())


def _section_markdown(section: SectionReference) -> str:
    title = section.path or "Top level"
    if section.tag is not None:
        title += f" (type {section.tag})"
    return "\n".join([f"## {title}", "", section.doc, "", *(_key_markdown(key) for key in section.keys), ""])


def _key_markdown(key: KeyReference) -> str:
    default = "" if isinstance(key.default, dict) else f", default `{json.dumps(key.default)}`"
    facts = key.type + (", required" if key.required else default or ", optional")
    also = f" Also: {', '.join(f'`{alias}`' for alias in key.aliases)}." if key.aliases else ""
    return f"- `{key.name}` ({facts}): {key.doc}{also}"


def type_words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Return a type in words, with its limits."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple:
        return _list_words(arguments)
    limits = ", ".join(_limits(metadata))
    return f"{_NAMES[annotation]} ({limits})" if limits else _NAMES[annotation]


def _list_words(arguments: tuple[Any, ...]) -> str:
    if arguments[-1] is Ellipsis:
        return f"list of ({type_words(arguments[0])})"
    return f"list of {len(arguments)} x ({type_words(arguments[0])})"


def _limits(metadata: tuple[Any, ...]) -> Iterator[str]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _limits(tuple(item.metadata))
        elif isinstance(item, MinLen):
            yield "not empty"
        elif type(item) in _SIGNS:
            word, attribute = _SIGNS[type(item)]
            limit = getattr(item, attribute)
            if limit < _NOT_TOLD:
                yield f"{word} {limit:g}"
