"""A new run never overwrites an old one's files: they are moved to a folder of their own first."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from lockstep.errors import UserError

log = logging.getLogger(__name__)


def old_files(prefix: Path, suffix: str, others: Iterable[Path]) -> list[Path]:
    """Files of an earlier run: its checkpoints `prefix-<step><suffix>`, and those of `others` that exist."""
    numbered = re.compile(re.escape(prefix.name) + r"(-\d+)?" + re.escape(suffix))
    folder = prefix.parent
    checkpoints = [p for p in folder.glob(f"*{suffix}") if numbered.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(checkpoints) + [path for path in others if path.is_file()]


def refuse_folders(outputs: Mapping[str, str]) -> None:
    """Stop where a folder has the name of a file to be written; by the option that names it."""
    for option, path in outputs.items():
        if Path(path).is_dir():
            raise UserError("a folder has this name", where=option, value=path, remedy="name a file")
        if not os.access(_existing(Path(path).absolute().parent), os.W_OK | os.X_OK):
            raise UserError("its folder cannot be written to", where=option, value=path, remedy="name another place")


def _existing(folder: Path) -> Path:
    """The folder, or the one above it in which it can be made."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def set_aside(files: Iterable[Path]) -> Path | None:
    """Move files to folders `previous-<n>` beside them, with the first number free everywhere; None without files.

    Files of several folders stay apart: they may lie on different disks, or have the same name.
    """
    files = list(files)
    if not files:
        return None
    folders = dict.fromkeys(path.parent for path in files)
    names = (f"previous-{number}" for number in count(1))
    name = next(name for name in names if not any((folder / name).exists() for folder in folders))
    for folder in folders:
        (folder / name).mkdir()
    for path in files:
        path.rename(path.parent / name / path.name)
    target = files[0].parent / name
    log.warning("Files of an earlier run were moved to %s (to go on from it: dp train --restart)", target)
    return target
