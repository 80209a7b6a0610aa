"""Reading the folder of a run, and nothing outside it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockstep.errors import UserError


class RunFolder:
    """The files directly in a folder.

    A name that leads elsewhere, by `..`, by an absolute path or by a link, is as good as absent: what is shown to a
    browser must lie in the folder that the user named.
    """

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path).resolve()
        if not self.root.is_dir():
            raise UserError(
                "there is no such folder", where=str(path), remedy="name the folder in which a run was made"
            )

    @property
    def name(self) -> str:
        return self.root.name or str(self.root)

    def file(self, name: str) -> Path | None:
        """The file `name` of this folder; None if there is none."""
        try:
            path = (self.root / name).resolve()
            inside = path.is_relative_to(self.root) and path.is_file()
        except (OSError, ValueError):
            return None
        return path if inside else None

    def files(self) -> list[Path]:
        """All files of the folder, by name."""
        names = sorted(entry.name for entry in os.scandir(self.root))
        return [path for name in names if (path := self.file(name)) is not None]

    def json(self, name: str) -> Any:
        """The content of a JSON file; None if it is not there, or still being written."""
        path = self.file(name)
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path else None
        except (OSError, ValueError):
            return None

    def newest(self, paths: Iterable[Path]) -> Path | None:
        """The file that was written last."""
        return max(paths, key=lambda path: _state(path)[0], default=None)

    def fingerprint(self) -> str:
        """Changes when any file does."""
        states = [_state(path) for path in self.files()]
        return f"{len(states)}-{max((when for when, _ in states), default=0)}-{sum(size for _, size in states)}"


def _state(path: Path) -> tuple[int, int]:
    """When a file was written, and its size; zeros if it has gone meanwhile, as old checkpoints do."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size
