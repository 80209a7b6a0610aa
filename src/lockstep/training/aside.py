"""A new run never overwrites an old one's files: they are moved to a folder of their own first."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)


def old_files(prefix: Path, suffix: str, others: Iterable[Path]) -> list[Path]:
    """Files of an earlier run: its checkpoints `prefix-<step><suffix>`, and those of `others` that exist."""
    numbered = re.compile(re.escape(prefix.name) + r"(-\d+)?" + re.escape(suffix))
    folder = prefix.parent
    checkpoints = [p for p in folder.glob(f"*{suffix}") if numbered.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(checkpoints) + [path for path in others if path.is_file()]


def set_aside(files: Iterable[Path]) -> Path | None:
    """Move files to the first free folder `previous-<n>` beside them; None when there are none."""
    files = list(files)
    if not files:
        return None
    number = 1
    while (target := files[0].parent / f"previous-{number}").exists():
        number += 1
    target.mkdir()
    for path in files:
        path.rename(target / path.name)
    log.warning("Files of an earlier run were moved to %s (to go on from it: dp train --restart)", target)
    return target
