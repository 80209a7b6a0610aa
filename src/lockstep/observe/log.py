"""Logging: what goes to the console and to the log file, on one rank or on many.

    master   rank 0 alone writes; the others only when they fail;
    collect  rank 0 writes the records of all ranks, in order of time, with their rank;
    workers  every rank writes its own lines, and its own file.

Every line is one `write` call, so that launchers which put a prefix before each line do not break it.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import UserError
from lockstep.files import describe_failure

if TYPE_CHECKING:
    from lockstep.parallel.context import WorkerContext
    from lockstep.parallel.group import Group
    from lockstep.parallel.watch.channel import Channel

MODES = ("master", "collect", "workers")
LEVELS = {"DEBUG": 10, "3": 10, "INFO": 20, "2": 20, "WARNING": 30, "1": 30, "ERROR": 40, "0": 40}
_CONSOLE = "DEEPMD {rank}%(levelname)-7s %(message)s"
_FILE = "[%(asctime)s] DEEPMD {rank}%(levelname)-7s %(name)-45s %(message)s"
_RANK = "rank:%(rank)-2s "
_REORDER_WINDOW = 0.5
_BACKLOG = 1000


class _Formatter(logging.Formatter):
    """Puts the whole prefix before every line of a message, tracebacks included."""

    def __init__(self, pattern: str, rank: int, show_rank: bool) -> None:
        super().__init__(pattern.format(rank=_RANK if show_rank else ""))
        self._own_rank = rank

    def lines(self, record: logging.LogRecord) -> list[str]:
        single = copy.copy(record)
        if not hasattr(single, "rank"):
            single.rank = self._own_rank
        text = message_of(record)
        single.args, single.exc_info, single.exc_text = None, None, None
        lines = []
        for line in text.splitlines() or [""]:
            single.msg = line
            lines.append(self.format(single))
        return lines


def message_of(record: logging.LogRecord) -> str:
    """The message with its traceback, if it has one."""
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


class LineHandler(logging.Handler):
    """Writes each line by one `write` to a file descriptor."""

    def __init__(self, descriptor: int, formatter: _Formatter, owned: bool = False) -> None:
        super().__init__()
        self._descriptor, self._owned = descriptor, owned
        self._lines = formatter.lines
        self._put: Callable[[str], None] = self._to_descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for line in self._lines(record):
                self._put(line)
        except Exception:
            self.handleError(record)

    def _to_descriptor(self, line: str) -> None:
        _write(self._descriptor, line.encode(errors="replace") + b"\n")

    def close(self) -> None:
        super().close()
        if self._owned:
            self._owned = False
            os.close(self._descriptor)


class ConsoleHandler(LineHandler):
    """Lines for the console, which something else that draws there may ask for."""

    def write_through(self, write: Callable[[str], None] | None) -> None:
        """Hands lines to `write` from now on, such as to a progress bar that stays below them; None ends it."""
        self._put = self._to_descriptor if write is None else write


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(0.001)


class _Backlog(logging.Handler):
    """Keeps the first records until it is known where the log file is, and who writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _BACKLOG:
            self.records.append(record)


class _Courier(logging.Handler):
    """Sends a worker's records to rank 0 over the side channel, which never makes the training wait."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(
            "log",
            {
                "created": record.created,
                "levelno": record.levelno,
                "levelname": record.levelname,
                "name": record.name,
                "msg": message_of(record),
            },
        )

    def flush(self) -> None:
        self._channel.flush(0.5)


class Collector(logging.Handler):
    """Rank 0's handler for the records of all ranks: holds each for a moment, to write them in order of time."""

    def __init__(self, console: ConsoleHandler, file: logging.Handler | None) -> None:
        super().__init__()
        self._console, self._file = console, file
        self._heap: list[tuple[float, int, logging.LogRecord]] = []
        self._order = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep log", daemon=True)
        self._thread.start()

    def write_through(self, write: Callable[[str], None] | None) -> None:
        """See `ConsoleHandler`."""
        self._console.write_through(write)

    def receive(self, rank: int, message: dict[str, Any]) -> None:
        """A record from another rank."""
        if self._stop.is_set():
            return
        record = logging.makeLogRecord({**message, "rank": rank})
        record.msecs = (record.created % 1) * 1000
        self.handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        heapq.heappush(self._heap, (record.created, next(self._order), record))
        if record.levelno >= logging.ERROR:
            self._write_until(float("inf"))

    def flush(self) -> None:
        with self.lock or threading.Lock():
            self._write_until(float("inf"))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(2.0)
        self.flush()
        if self._file is not None:
            self._file.close()
        super().close()

    def _run(self) -> None:
        while not self._stop.wait(_REORDER_WINDOW / 5):
            with self.lock or threading.Lock():
                self._write_until(time.time() - _REORDER_WINDOW)

    def _write_until(self, limit: float) -> None:
        while self._heap and self._heap[0][0] <= limit:
            record = heapq.heappop(self._heap)[2]
            # Workers have shown their errors on the console themselves: they may not live to send them.
            if record.levelno < logging.ERROR or not hasattr(record, "rank"):
                self._console.emit(record)
            if self._file is not None:
                self._file.emit(record)


class Logging:
    """The log of this process. Before `join` only the console is used, and no file is touched."""

    def __init__(self, level: int, path: Path | None, mode: str, context: WorkerContext, console: int = 2) -> None:
        self._path, self._context, self._console_fd = path, context, console
        self._mode = mode if context.size > 1 else "master"
        self._root = logging.getLogger("lockstep")
        self._root.setLevel(level)
        self._root.propagate = False
        self._backlog = _Backlog()
        self._handlers: list[logging.Handler] = []
        self._use([self._console(), self._backlog])

    def join(self, group: Group) -> None:
        """Opens the log files, and in collect mode the way to rank 0. Call it once the group is there."""
        if self._mode == "collect" and group.rank == 0:
            collector = Collector(self._console(), self._file())
            group.channel.on("log", collector.receive)
            handlers: list[logging.Handler] = [collector]
        elif self._mode == "collect":
            handlers = [self._console(), _Courier(group.channel)]
        else:
            handlers = [self._console(), *filter(None, [self._file()])]
        for handler in handlers:
            if not isinstance(handler, LineHandler) or handler is not handlers[0]:
                self._replay(handler)
        self._use(handlers)

    def tell_file(self, message: str) -> None:
        """Puts an error into the log file alone: the command line shows it on the console in its own words."""
        record = self._root.makeRecord(__name__, logging.ERROR, "", 0, message, (), None)
        for handler in self._handlers[1:]:
            handler.handle(record)

    def close(self) -> None:
        """Writes what is left and closes the files; the console goes on as it was at the start.

        To be called after `group.close()`, which waits for the last records of the other ranks.
        """
        self._use([self._console()])

    def _use(self, handlers: list[logging.Handler]) -> None:
        old, self._handlers = self._root.handlers[:], handlers
        self._root.handlers[:] = handlers
        for handler in old:
            handler.close()

    def _replay(self, handler: logging.Handler) -> None:
        for record in self._backlog.records:
            handler.handle(record)

    def _console(self) -> ConsoleHandler:
        rank = self._context.rank
        show_rank = self._mode != "master" or rank != 0
        handler = ConsoleHandler(self._console_fd, _Formatter(_CONSOLE, rank, show_rank))
        if rank != 0 and self._mode != "workers":
            handler.setLevel(logging.ERROR)
        return handler

    def _file(self) -> LineHandler | None:
        rank = self._context.rank
        if self._path is None or (rank != 0 and self._mode != "workers"):
            return None
        path = worker_path(self._path, rank) if self._mode == "workers" else self._path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Appended to: what happened before a restart, or in another run, must stay readable.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as problem:
            raise UserError(
                f"cannot be written: {describe_failure(problem, path)}",
                where="--log-path",
                value=str(path),
                remedy="name another file, or leave the option out",
            ) from problem
        return LineHandler(descriptor, _Formatter(_FILE, rank, self._mode == "collect"), owned=True)


def worker_path(path: Path, rank: int) -> Path:
    """`train.log` becomes `train_3.log`, and `train` becomes `train.3`."""
    if path.suffix:
        return path.with_name(f"{path.stem}_{rank}{path.suffix}")
    return path.with_name(f"{path.name}.{rank}")


def parse_level(text: str) -> int:
    """The level behind `-v`: a name, or a number from 0 (errors only) to 3 (everything)."""
    try:
        return LEVELS[text.upper()]
    except KeyError:
        raise UserError(f"expected one of {', '.join(LEVELS)}", where="--log-level", value=text) from None


def configure_logging(
    level: int, path: Path | None, mode: str, context: WorkerContext, group: Group | None = None
) -> Logging:
    """Sets up the log of this process; with `group` (or by `join` later) also its files and the other ranks'."""
    if mode not in MODES:
        raise UserError(f"expected one of {', '.join(MODES)}", where="--mpi-log", value=mode)
    log = Logging(level, path, mode, context)
    if group is not None:
        log.join(group)
    return log
