"""Log modes: formats, files, one write per line, and records collected in order of time."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import UserError
from lockstep.observe import log as module
from lockstep.observe.log import Collector, LineHandler, Logging, configure_logging, parse_level, worker_path
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines.solo import SoloGroup

logger = logging.getLogger("lockstep.test")


class Console:
    """The reading end of a pipe that stands for the console."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def text(self) -> str:
        try:
            return os.read(self.reader, 1 << 16).decode()
        except BlockingIOError:
            return ""


@pytest.fixture(autouse=True)
def console() -> Iterator[Console]:
    root = logging.getLogger("lockstep")
    before = root.handlers[:], root.level, root.propagate
    pipe = Console()
    yield pipe
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]
    os.close(pipe.reader)
    os.close(pipe.writer)


def context(rank: int = 0, size: int = 1, attempt: int = 0) -> WorkerContext:
    return WorkerContext("test", rank, size, rank, size, attempt=attempt)


SOLO = SoloGroup(context())


@pytest.mark.parametrize(
    ("mode", "rank", "size", "expected"),
    [
        ("master", 0, 1, "DEEPMD INFO    hello\n"),
        ("master", 0, 4, "DEEPMD INFO    hello\n"),
        ("master", 3, 4, ""),
        ("collect", 3, 4, ""),
        ("workers", 0, 4, "DEEPMD rank:0  INFO    hello\n"),
        ("workers", 3, 4, "DEEPMD rank:3  INFO    hello\n"),
        ("workers", 0, 1, "DEEPMD INFO    hello\n"),
    ],
)
def test_console_lines(mode: str, rank: int, size: int, expected: str, console: Console) -> None:
    Logging(logging.INFO, None, mode, context(rank, size), console.writer)
    logger.info("hello")
    logger.debug("not shown")
    assert console.text() == expected


def test_a_failing_worker_is_heard_in_every_mode(console: Console) -> None:
    Logging(logging.INFO, None, "master", context(2, 4), console.writer)
    logger.error("broken")
    assert console.text() == "DEEPMD rank:2  ERROR   broken\n"


def test_every_line_of_a_traceback_carries_the_prefix(console: Console) -> None:
    Logging(logging.INFO, None, "master", context(), console.writer)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    lines = console.text().splitlines()
    assert lines[0] == "DEEPMD ERROR   failed"
    assert lines[-1] == "DEEPMD ERROR   lines"
    assert all(line.startswith("DEEPMD ERROR   ") for line in lines)


def test_one_write_call_per_line(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    writes: list[bytes] = []
    real = os.write
    Logging(logging.INFO, None, "master", context(), console.writer)
    monkeypatch.setattr(module.os, "write", lambda fd, data: (writes.append(data), real(fd, data))[1])
    logger.info("one\ntwo")
    logger.info("three")
    assert writes == [b"DEEPMD INFO    one\n", b"DEEPMD INFO    two\n", b"DEEPMD INFO    three\n"]


def test_the_file_has_time_stamps_and_what_was_said_before_it_was_opened(tmp_path: Path, console: Console) -> None:
    path = tmp_path / "new" / "train.log"
    logs = Logging(logging.INFO, path, "master", context(), console.writer)
    logger.info("early")
    assert not path.parent.exists()
    logs.join(SOLO)
    logger.info("late")
    logs.close()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] DEEPMD INFO    lockstep\.test {33}"
    assert re.fullmatch(rf"{stamp}early\n{stamp}late\n", path.read_text())
    assert console.text() == "DEEPMD INFO    early\nDEEPMD INFO    late\n"


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_the_file_holds_already_stays(attempt: int, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("before\n")
    logs = configure_logging(logging.INFO, path, "master", context(attempt=attempt), SOLO)
    logging.getLogger("lockstep.test").info("now")
    logs.close()
    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("now\n")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--log-path"):
        configure_logging(logging.INFO, tmp_path / "file" / "x.log", "master", context(), SOLO)


@pytest.mark.parametrize(
    ("name", "expected"), [("train.log", "train_3.log"), ("train", "train.3"), ("a.b.c", "a.b_3.c")]
)
def test_names_of_workers_files(name: str, expected: str) -> None:
    assert worker_path(Path("d") / name, 3) == Path("d") / expected


@pytest.mark.parametrize(("text", "level"), [("DEBUG", 10), ("3", 10), ("info", 20), ("2", 20), ("1", 30), ("0", 40)])
def test_levels(text: str, level: int) -> None:
    assert parse_level(text) == level


def test_unknown_levels_and_modes_are_refused() -> None:
    with pytest.raises(UserError, match="DEBUG"):
        parse_level("loud")
    with pytest.raises(UserError, match="master, collect, workers"):
        configure_logging(20, None, "nobody", context())


def _record(created: float, text: str) -> dict[str, object]:
    return {"created": created, "levelno": 20, "levelname": "INFO", "name": "lockstep", "msg": text}


def test_collected_records_are_written_in_order_of_time(console: Console) -> None:
    now = time.time()
    collector = Collector(LineHandler(console.writer, module._Formatter(module._CONSOLE, 0, True)), None)
    collector.receive(2, _record(now + 0.002, "second"))
    collector.receive(1, _record(now + 0.001, "first"))
    assert console.text() == ""
    collector.close()
    assert console.text() == "DEEPMD rank:1  INFO    first\nDEEPMD rank:2  INFO    second\n"


def test_collected_records_are_not_held_for_long(console: Console) -> None:
    collector = Collector(LineHandler(console.writer, module._Formatter(module._CONSOLE, 0, True)), None)
    collector.receive(1, _record(time.time(), "soon"))
    deadline = time.monotonic() + 5
    text = ""
    while not text and time.monotonic() < deadline:
        time.sleep(0.05)
        text = console.text()
    collector.close()
    assert "soon" in text


def test_a_percent_sign_from_another_rank_is_text(console: Console) -> None:
    collector = Collector(LineHandler(console.writer, module._Formatter(module._CONSOLE, 0, True)), None)
    collector.receive(1, _record(time.time(), "100% done %s"))
    collector.close()
    assert "100% done %s" in console.text()


def test_the_log_does_not_load_torch() -> None:
    code = "import sys, lockstep.observe.log; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=os.environ).returncode == 0
