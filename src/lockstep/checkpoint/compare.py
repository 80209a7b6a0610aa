"""What differs between the configuration in a checkpoint and the one in the input file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def compare_configs(
    saved: Mapping[str, Any], given: Mapping[str, Any], where: str = "", ignore: tuple[str, ...] = ("seed",)
) -> list[str]:
    """One line per difference between the configuration in a checkpoint and the one in the input file.

    Keys named in `ignore` may differ at any depth.
    """
    lines: list[str] = []
    for key in [*saved, *(key for key in given if key not in saved)]:
        if key in ignore:
            continue
        path = f"{where}.{key}" if where else key
        old, new = saved.get(key, _ABSENT), given.get(key, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += compare_configs(old, new, path, ignore)
        elif _plain(old) != _plain(new):
            lines.append(f"{path}: checkpoint has {_show(old)}, input has {_show(new)}")
    return lines


_ABSENT = object()


def _plain(value: Any) -> Any:
    """JSON knows no tuples: a configuration that went through a file holds lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _show(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(_plain(value), default=repr)
