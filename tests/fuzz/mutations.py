"""Real files and inputs, made wrong: what all fuzzing shares.

Random bytes alone are refused by the first check that they meet. So whole files are taken apart, changed in a few
places, and put together again, with lengths and checksums that are right.
"""

from __future__ import annotations

import copy
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lockstep.errors import UserError

ONE_SCREEN = 25


class Started(Exception):  # noqa: N818 (not an error)
    """A run came as far as its first step."""


ROOM = 2 << 30
"""Bytes of address space that taking a file apart may need beyond what the process has."""
SMALL = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)


def fuzzed(share: int) -> settings:
    """A part of the examples that the profile gives to a format: all its tests together have as many as it says."""
    return settings(max_examples=max(20, settings().max_examples // share), suppress_health_check=SMALL)


def _deep(levels: int) -> Any:
    tree: Any = 1
    for number in range(levels):
        tree = [tree] if number % 2 else {"a": tree}
    return tree


ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 1e-300, -1e-300, 1e30, 1e300, float("nan"), float("inf")),
    *(2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 100_000, 100_001, 10**9),
    *("", " ", "a", "\0", "a\0b", "\ud800", "é☃", "x" * 300, "9" * 5000, "nan", "1e400", "auto", "auto:1", "off"),
    *(
        "auto:" + "9" * 400,
        "max:0",
        "filter:1",
        "prob_sys_size;0:1:1e400",
        "prob_sys_size;0:99999999999:1",
        "silut:9e9",
    ),
    *("/", ".", "..", "~", "train", "train#", "#", "/dev/null", "model.ckpt", "float32", "int8", "se_e2_r", "hybrid"),
    *([], {}, [[]], [{}], [None], [0], [-1], [1e30], [1, 2, 3], ["A"], ["A", "A"], [True], [[0, 1]], {"a": 1}),
    *({"type": "hybrid"}, {"type": None}, {"_comment": 1}, {"": 0}),
    *(_deep(20), _deep(60), _deep(120)),
]
odd_values = st.sampled_from(ODD_VALUES)


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a tree of dictionaries and lists."""
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in members:
        yield (*at, key)
        yield from places(value, (*at, key))


def at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


@st.composite
def changed_trees(draw: st.DrawFn, original: Any, most: int = 3) -> Any:
    """The tree with up to `most` places changed: another value, nothing, something from elsewhere, or one in a list."""
    tree = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, most))):
        found = list(places(tree))
        if not found:
            break
        place = draw(st.sampled_from(found))
        parent, key = at(tree, place[:-1]), place[-1]
        action = draw(st.sampled_from(["odd", "odd", "odd", "drop", "copy", "wrap", "repeat", "key"]))
        if action == "odd":
            parent[key] = copy.deepcopy(draw(odd_values))
        elif action == "drop":
            del parent[key]
        elif action == "copy":
            parent[key] = copy.deepcopy(at(tree, draw(st.sampled_from(found))))
        elif action == "wrap":
            parent[key] = draw(st.sampled_from([lambda value: [value], lambda value: {"list": value}]))(parent[key])
        elif action == "repeat" and isinstance(parent[key], list):
            parent[key] = parent[key] * 3
        elif action == "key" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["", "a", "type", "list", "@variables", "_x"]))] = parent.pop(key)
    return tree


@st.composite
def changed_bytes(draw: st.DrawFn, original: bytes, first: int = 4096) -> bytes:
    """The bytes with a few changed, cut, doubled or put in, more often near the beginning than anywhere else."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        end = len(data) - 1
        if end < 1:
            break
        place = draw(st.integers(0, min(first, end)) | st.integers(0, end))
        length = draw(st.integers(1, 16))
        action = draw(st.sampled_from(["set", "set", "set", "cut", "end", "double", "insert"]))
        if action == "set":
            new = draw(
                st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7])
            )
            data[place : place + len(new)] = new
        elif action == "cut":
            del data[place : place + length]
        elif action == "end":
            del data[place:]
        elif action == "double":
            data[place:place] = data[place : place + length]
        else:
            data[place:place] = draw(st.binary(min_size=1, max_size=16))
    return bytes(data)


@contextmanager
def explained() -> Iterator[None]:
    """Within it all goes well, or ends in an error for people that fits on a screen; memory is short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    try:
        yield
    except UserError as error:
        refuse_long(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refuse_long(message: str) -> None:
    assert message.strip()
    assert len(message.splitlines()) <= ONE_SCREEN, message
    assert len(message) <= 80 * ONE_SCREEN, message
