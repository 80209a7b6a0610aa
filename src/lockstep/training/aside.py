"""A new run never overwrites an old one's files: they are moved to a folder of their own first."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from lockstep.checkpoint.names import (
    POINTER,
    identity,
    leads_to_newest,
    link_of,
    linked,
    numbered_files,
    pointed,
    prefix_and_step,
    reference,
)
from lockstep.files import write_text

log = logging.getLogger(__name__)


def old_files(prefix: Path, others: Iterable[Path]) -> list[Path]:
    """Files of an earlier run: the checkpoints of `prefix`, and those of `others` that exist."""
    checkpoints = [file for _, file in sorted(numbered_files(prefix).items())]
    # Where the link would be, there may lie a checkpoint of another run: `m-2.safetensors` is one of `m`.
    link = [] if prefix_and_step(link_of(prefix)) and not leads_to_newest(link_of(prefix)) else [link_of(prefix)]
    rest = [path for path in (*link, *others) if path.is_file() or leads_to_newest(path)]
    return list({identity(path): path for path in (*checkpoints, *rest)}.values())


def set_aside(files: Iterable[Path], prefix: Path) -> Path | None:
    """Move files to folders `previous-<n>` beside them, with the first number free everywhere; None without files.

    Files of several folders stay apart: they may lie on different disks, or have the same name. Links and pointers
    to moved checkpoints lead to their new place.
    """
    files = list(files)
    if not files:
        return None
    folders = {path.parent.resolve(): path.parent for path in files}.values()
    names = (f"previous-{number}" for number in count(1))
    name = next(name for name in names if not any((folder / name).exists() for folder in folders))
    for folder in folders:
        (folder / name).mkdir()
    places = {identity(path): path.parent / name / path.name for path in files}
    for path in files:
        _move(path, places)
    log.warning("Files of an earlier run were moved to %s%s", files[0].parent / name, _way_back(files, prefix, name))
    return files[0].parent / name


def _move(path: Path, places: dict[Path, Path]) -> None:
    target = places[identity(path)]
    if leads_to_newest(path):
        checkpoint = linked(path)
        target.symlink_to(reference(places.get(identity(checkpoint), checkpoint), target.parent))
    elif path.name == POINTER and (named := pointed(path)):
        write_text(target, reference(places.get(identity(named), named), target.parent))
    else:
        path.rename(target)
        return
    path.unlink()


def _way_back(files: list[Path], prefix: Path, name: str) -> str:
    if not any(file.name.startswith(f"{prefix.name}-") for file in files):
        return ""
    return f" (to go on from it: dp train --restart {prefix.parent / name / prefix.name})"
