"""Two runs never write to the same files: the second is told who the first is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from lockstep.errors import UserError
from lockstep.files import describe_failure

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class RunLock:
    """Holds the outputs of a run until the process ends, however it ends.

    The operating system owns the lock, not the file, so a killed run leaves nothing to clean up. File systems
    without locks are used unlocked.

    Args:
        outputs: what this run writes, such as its checkpoint prefix and its learning curve.
    """

    def __init__(self, outputs: Iterable[str | Path]) -> None:
        self.outputs = [Path(output) for output in outputs]
        self._held: list[tuple[int, Path]] = []

    def __enter__(self) -> RunLock:
        try:
            for output in self.outputs:
                self._hold(output)
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let others write."""
        while self._held:
            descriptor, path = self._held.pop()
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _hold(self, output: Path) -> None:
        path = output.with_name(f".{output.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _lock(path)
        except BlockingIOError as error:
            raise _in_use(output, path) from error
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise UserError(
                f"the folder cannot be written to: {describe_failure(error, path)}",
                where=str(output),
                remedy="give the folder write permission or make room, or choose another: training.save_ckpt, save_dir"
                " and disp_file say where a run writes",
            ) from error
        self._held.append((descriptor, path))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(_identity()).encode())


def _lock(path: Path) -> int:
    """A locked descriptor of the file that `path` names now."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former holder may have removed the name between our open and our lock: try the new file.
            if _same(descriptor, path):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _identity() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _in_use(output: Path, path: Path) -> UserError:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']}, started {holder['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return UserError(
        f"another run is writing here: {who}",
        where=str(output),
        remedy="wait for it or end it, or run in another folder (or with another save_ckpt and disp_file)",
    )
