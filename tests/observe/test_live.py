"""The progress bar on a real (pseudo) terminal, and the log lines above it."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

import lockstep
from lockstep.observe.live import NullBar, describe_left, describe_speed, make_bar
from lockstep.observe.progress import Lines, progress

SOURCE = str(Path(lockstep.__file__).parents[1])
TRAINING = """
import logging, sys, time
from pathlib import Path
from lockstep.observe.live import make_bar
from lockstep.observe.log import configure_logging
from lockstep.parallel.launchers import alone
from lockstep.parallel.engines.solo import SoloGroup
context = alone.detect({})
configure_logging(20, Path(sys.argv[1]), "master", context, SoloGroup(context))
log = logging.getLogger("lockstep.toy")
bar = make_bar(True)
bar.begin(0, 50)
try:
    for step in range(1, 51):
        time.sleep(0.02)
        bar.update(step)
        if step % 10 == 0:
            log.info("Batch %d " + "x" * 100 + " [bold]:smile: end", step)
            bar.note({"rmse_f": 0.25}, None)
        if step == 20 and sys.argv[2] == "raise":
            raise SystemExit("stopped by an error")
        if step == 20 and sys.argv[2] == "wait":
            time.sleep(60)
finally:
    bar.end()
log.info("finished")
"""


def on_terminal(log: Path, ending: str, stop: str = "") -> str:
    """Everything that the toy training writes to a terminal; it is interrupted once it has written `stop`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="90", PYTHONPATH=SOURCE)
        os.execv(sys.executable, [sys.executable, "-c", TRAINING, str(log), ending])
    written, deadline = b"", time.monotonic() + 60
    # Not select, which knows the first thousand open files only.
    waiting = select.poll()
    waiting.register(terminal, select.POLLIN)
    while time.monotonic() < deadline:
        if waiting.poll(1000):
            try:
                part = os.read(terminal, 65536)
            except OSError:
                break
            written += part
            if stop and stop.encode() in written:
                time.sleep(0.5)
                os.kill(pid, signal.SIGINT)
                stop = ""
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode()


def test_log_lines_stay_whole_above_the_bar(tmp_path: Path) -> None:
    written = on_terminal(tmp_path / "train.log", "end")
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", written)
    for step in range(10, 51, 10):
        assert f"DEEPMD INFO    Batch {step} {'x' * 100} [bold]:smile: end\r\n" in plain
    assert "DEEPMD INFO    finished\r\n" in plain
    assert "step/s" in plain
    assert "left" in plain
    assert "force error 0.25 eV/Å" in plain


def test_the_bar_is_wiped_at_the_end(tmp_path: Path) -> None:
    written = on_terminal(tmp_path / "train.log", "end")
    assert re.search(r"\x1b\[2K[^━]*finished", written)


def test_the_log_file_has_the_lines_and_no_bar(tmp_path: Path) -> None:
    on_terminal(tmp_path / "train.log", "end")
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert len(lines) == 6
    assert not any("━" in line or "\x1b" in line for line in lines)


def test_an_error_finds_the_terminal_as_it_was(tmp_path: Path) -> None:
    written = on_terminal(tmp_path / "train.log", "raise")
    assert "━" not in written.rpartition("\x1b[2K")[2]
    assert written.endswith("stopped by an error\r\n")


def test_the_cursor_is_never_hidden(tmp_path: Path) -> None:
    # A process that is killed could not bring it back.
    written = on_terminal(tmp_path / "train.log", "wait", stop="Batch 20")
    assert "\x1b[?25l" not in written
    assert "━" not in written.rpartition("\x1b[2K")[2]


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(make_bar(True)) is NullBar
    assert type(make_bar(False)) is NullBar


@pytest.mark.parametrize(("speed", "text"), [(None, ""), (12.345, "12.3 step/s"), (0.25, "4 s/step")])
def test_speed(speed: float | None, text: str) -> None:
    assert describe_speed(speed, "step") == text


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (75.4, "0:01:15 left"), (90000, "1 day, 1:00:00 left")])
def test_time_left(seconds: float | None, text: str) -> None:
    assert describe_left(seconds) == text


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("lockstep"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def test_long_work_is_reported_from_time_to_time(records: pytest.LogCaptureFixture) -> None:
    lines = Lines("testing", 100, "frames", patience=0.0)
    lines.advance(25)
    assert records.messages[0].startswith("testing: 25 of 100 frames (25 %)")
    lines.advance(75)
    assert len(records.messages) == 1


def test_short_work_is_not_worth_a_line(records: pytest.LogCaptureFixture) -> None:
    with progress("testing", 2, "frames") as bar:
        bar.advance(1)
        bar.advance(1)
    assert records.messages == []
