"""Files that are either the old one or the new one, whole, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.errors import UserError

_TEMPORARY = re.compile(r"\.(?P<owner>.+)\.\d+\.tmp")
# File systems that cannot flush a folder say so with one of these.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IN_THE_WAY = {
    errno.EEXIST: "a part of the path is a file, not a folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "a folder has this name",
}


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to be written; on success it takes the name `path`, and both are on the disk.

    The folder is made where it is missing. On failure `path` is what it was; a failure of the operating system is
    told as a UserError.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(target, target.name) as temporary:
            yield temporary
            _sync(temporary)
            os.replace(temporary, target)
        _sync(target.parent)
    except OSError as error:
        raise UserError(
            f"cannot be written: {describe_failure(error, target)}",
            where=str(target),
            remedy="check the folder's permissions and make room, or name another file",
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write a small text file whole."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_atomically(path: Path, data: bytes, owner: str = "") -> None:
    """Replace `path` by `data`; returns when both the data and the name are on the disk.

    On any failure the temporary file is removed, `path` is what it was, and the operating system's error is raised.
    The temporary file is named after `owner`, where several runs may write the same `path`, so that each clears away
    its own leftovers only.
    """
    with _temporary(path, owner or path.name) as temporary:
        temporary.write_bytes(data)
        _sync(temporary)
        os.replace(temporary, path)
    _sync(path.parent)


def link_atomically(link: Path, target: str) -> None:
    """Let the symbolic link `link` lead to `target` from now on."""
    with _temporary(link, link.name) as temporary:
        os.symlink(target, temporary)
        os.replace(temporary, link)


def _sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, owner_pattern: str) -> None:
    """Remove the temporary files of killed writers: those whose owner matches `owner_pattern`."""
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and re.fullmatch(owner_pattern, match["owner"]):
            path.unlink(missing_ok=True)


def describe_failure(error: OSError, path: Path) -> str:
    """Why writing to `path` failed, with the free space when that is the reason."""
    reason = _IN_THE_WAY.get(error.errno or 0, error.strerror or str(error))
    if error.errno not in _NO_ROOM:
        return reason
    folder = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    with suppress(OSError):
        return f"{reason} (free space in {folder}: {_readable(shutil.disk_usage(folder).free)})"
    return reason


@contextmanager
def _temporary(path: Path, owner: str) -> Iterator[Path]:
    """A name in the folder of `path` that nobody else writes to, gone in the end."""
    temporary = path.with_name(f".{owner}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
    finally:
        # After a successful rename there is nothing left; after a failure, what is left is worthless.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _readable(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
