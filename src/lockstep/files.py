"""Writing files so that a crash, a full disk or a second reader never meets half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.errors import UserError


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced to disk and takes the name in one step."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    except OSError as error:
        raise UserError(
            f"could not be written: {error.strerror or error}",
            where=str(target),
            remedy="check the folder's permissions and the free space of the disk",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file whole."""
    with written_whole(path) as temporary:
        temporary.write_text(text)


def sync(path: Path) -> None:
    """Force a file's or a folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
