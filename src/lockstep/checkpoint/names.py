"""How the files of a run's checkpoints are named, and what links and pointers say of them.

A run's *prefix* is the path `training.save_ckpt` (in `save_dir` where that is given). Its checkpoints are
`<prefix>-<step>.safetensors`; the link `<prefix>.safetensors` leads to the newest; the file `checkpoint` in the folder
of the run names the newest of that run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SUFFIX = ".safetensors"
POINTER = "checkpoint"
BEST = "best.ckpt"
"""The name of the prefix under which the best checkpoints of a run lie beside its own."""

_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<step>\d+)" + re.escape(SUFFIX))


def prefix_and_step(file: Path) -> tuple[Path, int] | None:
    """`a/model.ckpt-12.safetensors` is of the prefix `a/model.ckpt`, after 12 steps; None for other names."""
    match = _NUMBERED.fullmatch(file.name)
    return (file.with_name(match["prefix"]), int(match["step"])) if match else None


def link_of(prefix: Path) -> Path:
    """The link to the newest checkpoint of a prefix."""
    return prefix.with_name(prefix.name + SUFFIX)


def leads_to_newest(path: Path) -> bool:
    """Whether `path` is such a link: `model.ckpt.safetensors` -> `.../model.ckpt-12.safetensors`."""
    if not (os.path.islink(path) and path.name.endswith(SUFFIX)):
        return False
    found = prefix_and_step(path.readlink())
    return found is not None and found[0].name == path.name.removesuffix(SUFFIX)


def numbered_files(prefix: Path) -> dict[int, Path]:
    """The checkpoints that lie beside a prefix, by step."""
    files = {}
    for path in _checkpoints_in(prefix.parent):
        found = prefix_and_step(path)
        if found and found[0].name == prefix.name and not leads_to_newest(path):
            files[found[1]] = path
    return files


def prefixes_in(folder: Path) -> Iterator[Path]:
    """The prefixes of all checkpoints in a folder, and of those that its links lead to."""
    for path in _checkpoints_in(folder):
        found = prefix_and_step(linked(path) if leads_to_newest(path) else path)
        if found:
            yield found[0]


def linked(link: Path) -> Path:
    """What a link names, whether that is there or not."""
    return link.parent / link.readlink()


def pointed(pointer: Path) -> Path | None:
    """The checkpoint that the file `checkpoint` names; None where it names none."""
    try:
        text = pointer.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    if "\0" in text or not prefix_and_step(Path(text)):
        return None
    return pointer.parent / text


def same_prefix(one: Path, other: Path) -> bool:
    """Whether two prefixes are one: the same place, by whatever links it is reached."""
    return identity(one) == identity(other)


def identity(prefix: Path) -> Path:
    """A prefix with the links of its folder resolved, to tell runs apart by."""
    with suppress(OSError, RuntimeError):
        return prefix.parent.resolve() / prefix.name
    return prefix.absolute()


def reference(target: Path, folder: Path) -> str:
    """How a link or a pointer in `folder` should name `target`.

    Relative within the folder, so that a run can be moved as a whole; absolute elsewhere, so that a folder that was
    moved does not come to name whatever lies beside its new place.
    """
    for place, base in (
        (Path(os.path.abspath(target)), Path(os.path.abspath(folder))),
        (identity(target), folder.resolve()),
    ):
        if place.is_relative_to(base):
            return str(place.relative_to(base))
    return str(identity(target))


def _checkpoints_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except (OSError, ValueError):
        return []
