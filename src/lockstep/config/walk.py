"""Walk through the raw input beside the sections' classes, before pydantic sees it.

Comments, aliases, type tags, unknown and not yet supported keys are dealt with here: pydantic alone would
stop a section at the first of them, and does not know what DeePMD-kit knows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from lockstep.config.problem import NO_VALUE, Problem, nearest
from lockstep.config.section import Section, Tags, is_comment

Location = tuple[str | int, ...]

log = logging.getLogger(__name__)


@dataclass
class Walk:
    """What a walk found.

    Attributes:
        problems: mistakes, in the order of the file.
        spelling: the user's own spelling of keys given under an alias, by location.
        abandoned: locations of sub-sections that cannot be examined, because their type is not known.
    """

    problems: list[Problem] = field(default_factory=list)
    spelling: dict[Location, str] = field(default_factory=dict)
    abandoned: set[Location] = field(default_factory=set)

    def path(self, location: Location) -> str:
        """Return the dotted path of a location, in the user's spelling."""
        text = ""
        for depth, part in enumerate(location, start=1):
            if isinstance(part, int):
                text += f"[{part}]"
            else:
                text += f"{'.' if text else ''}{self.spelling.get(location[:depth], part) or repr('')}"
        return text

    def report(self, location: Location, reason: str, remedy: str = "", value: object = NO_VALUE) -> None:
        """Add a mistake at `location`."""
        self.problems.append(Problem(self.path(location), reason, value, remedy))

    def section(self, cls: type[Section], raw: dict[Any, Any], at: Location = ()) -> dict[str, Any]:
        """Return `raw` with comments dropped and keys in the names of the fields of `cls`."""
        names = cls.names()
        clean: dict[str, Any] = {}
        for key, value in raw.items():
            if not isinstance(key, str):
                self.report((*at, str(key)), "keys must be text")
            elif is_comment(key):
                continue
            elif key not in names:
                self._stranger(cls, key, value, at)
            elif names[key] in clean:
                other = self.spelling.get((*at, names[key]), names[key])
                self.report((*at, key), f"given twice: it is another name of {other!r}", "keep one of them", value)
            else:
                self._known(cls, key, value, at, clean)
        return clean

    def _known(self, cls: type[Section], key: str, value: Any, at: Location, clean: dict[str, Any]) -> None:
        name = cls.names()[key]
        here = (*at, name)
        if key != name:
            self.spelling[here] = key
        clean[name] = self._value(cls.model_fields[name], value, here)

    def _value(self, info: FieldInfo, value: Any, here: Location) -> Any:
        """A value with the sections in it cleaned."""
        item = item_field(info)
        if item is not None and isinstance(value, list | tuple):
            return [self._value(item, each, (*here, number)) for number, each in enumerate(value)]
        choices = section_classes(info)
        if not isinstance(value, dict):
            return value
        entry = entry_class(info)
        if entry is not None:
            return {k: self.section(entry, v, (*here, k)) if isinstance(v, dict) else v for k, v in value.items()}
        if not choices:
            return value
        chosen = self._choose(choices, info, value, here)
        if chosen is None:
            self.abandoned.add(here)
            return value
        sub_class, tag = chosen
        result = self.section(sub_class, value, here)
        return result if tag is None else {**result, "type": tag}

    def _choose(
        self, choices: dict[str, type[Section]], info: FieldInfo, value: dict[Any, Any], here: Location
    ) -> tuple[type[Section], str | None] | None:
        tags = tags_of(info)
        if tags is None:
            return next(iter(choices.values())), None
        given = value.get("type", tags.default)
        if given is None:
            self.report((*here, "type"), "required, but not given", f"possible: {', '.join(choices)}")
            return None
        tag = dict(tags.aliases).get(given, given) if isinstance(given, str) else given
        if isinstance(tag, str) and tag in choices:
            return choices[tag], tag
        if tag in tags.unsupported:
            self.report((*here, "type"), "not supported yet", f"supported: {', '.join(choices)}", given)
        else:
            remedy = nearest(given, choices) if isinstance(given, str) else f"possible: {', '.join(choices)}"
            self.report((*here, "type"), "unknown type", remedy, given)
        return None

    def _stranger(self, cls: type[Section], key: str, value: Any, at: Location) -> None:
        here = (*at, key)
        if key in cls.moved:
            self.report(here, *_moved(self.path(here), cls.moved[key]))
        elif key in cls.without_effect:
            log.warning("%s is of an older version of DeePMD-kit and has no effect", self.path(here))
        elif key not in cls.unsupported_keys:
            self.report(here, "unknown key", nearest(key, cls.names(), cls.model_fields))
        elif not changes_nothing(value, cls.unsupported_keys[key]):
            self.report(here, "not supported yet", "remove it", value)


def _moved(old: str, new: str) -> tuple[str, str]:
    version = "of DeePMD-kit version 1" if new.startswith("training.training_data") else "of DeePMD-kit 3.1 or older"
    return f"this is the form of an input file {version}", f"move {old} to {new}"


def changes_nothing(value: object, default: object) -> bool:
    """Whether giving `value` to a key that is not implemented means what leaving it out means."""
    if value is None:
        return True
    if isinstance(default, dict):
        given = {key: v for key, v in value.items() if not is_comment(str(key))} if isinstance(value, dict) else {}
        known = isinstance(value, dict) and given.keys() <= default.keys()
        return known and all(changes_nothing(v, default[key]) for key, v in given.items())
    # True == 1 in Python, but a number is not an answer to a yes-or-no question.
    return isinstance(value, bool) == isinstance(default, bool) and value == default


def tags_of(info: FieldInfo) -> Tags | None:
    """Return how the type of a sub-section is chosen, if it is."""
    return next((marker for marker in info.metadata if isinstance(marker, Tags)), None)


def item_field(info: FieldInfo) -> FieldInfo | None:
    """Return what a list of sections holds; None for any other field."""
    if get_origin(info.annotation) is not tuple:
        return None
    item = FieldInfo.from_annotation(get_args(info.annotation)[0])
    return item if section_classes(item) else None


def section_classes(info: FieldInfo) -> dict[str, type[Section]]:
    """Return the section classes a field may hold, by type tag (by class name where there is none)."""
    tags = tags_of(info)
    if tags is not None and tags.table:
        return dict(tags.table)
    members = get_args(info.annotation) or (info.annotation,)
    classes = [cls for cls in members if isinstance(cls, type) and issubclass(cls, Section)]
    return {_tag(cls): cls for cls in classes}


def entry_class(info: FieldInfo) -> type[Section] | None:
    """Return the section class of the entries, where a field is a dictionary of sections by name."""
    for member in (info.annotation, *get_args(info.annotation)):
        if get_origin(member) is dict:
            entry = get_args(member)[1]
            return entry if isinstance(entry, type) and issubclass(entry, Section) else None
    return None


def _tag(cls: type[Section]) -> str:
    info = cls.model_fields.get("type")
    return info.default if info is not None else cls.__name__
