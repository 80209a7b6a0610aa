"""What a run's log tells: where it ran, its systems, how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.report.folder import RunFolder

_LINE = re.compile(r"DEEPMD (?:rank:\d+\s+)?(?P<level>[A-Z]+)\s+(?:lockstep\S*\s+)?(?P<message>.*)")
_START, _SYSTEMS = "---Summary of the training", "---Summary of DataSystem:"
_SUFFIXES = (".log", ".txt", ".out", ".err", "")
_MOST = 8_000_000
_COLUMNS = 5
"""Of a row of the table of systems, after the name."""


@dataclass
class LogFacts:
    """What was found.

    Attributes:
        facts: the lines of the summary: world size, computing device, and so on.
        systems: for each table its title, rows and last line.
        finished: whether the log says so.
        tail: the last lines, for a live view.
    """

    facts: dict[str, str] = field(default_factory=dict)
    systems: list[dict[str, Any]] = field(default_factory=list)
    wall: float | None = None
    finished: bool = False
    warnings: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)


def find_log(folder: RunFolder) -> Path | None:
    """The newest file of the folder that begins like the log of a training."""
    return folder.newest(path for path in folder.files() if path.suffix in _SUFFIXES and _is_log(path))


def read_log(path: Path) -> LogFacts:
    """The facts of the last training that a log tells of."""
    found = LogFacts()
    lines = [match for line in _text(path).splitlines() if (match := _LINE.search(line))]
    starts = [number for number, match in enumerate(lines) if match["message"].startswith(_START)]
    messages = [match["message"] for match in lines[starts[-1] if starts else 0 :]]
    for number, message in enumerate(messages):
        if message.startswith(_START):
            found.facts = _facts(messages[number + 1 :])
        elif message.startswith(_SYSTEMS):
            found.systems.append(_systems(message, messages[number + 1 :]))
        elif message.startswith("wall time: "):
            found.wall = float(message.split()[2])
        elif message == "finished training":
            found.finished = True
    found.warnings = [m["message"] for m in lines[starts[-1] if starts else 0 :] if m["level"] in ("WARNING", "ERROR")]
    found.tail = messages[-12:]
    return found


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return _START.encode() in file.read(65536)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST).decode("utf-8", errors="replace")


def _facts(messages: list[str]) -> dict[str, str]:
    """`name:  value` up to the rule that ends the summary."""
    facts: dict[str, str] = {}
    for message in messages:
        if message.startswith("---"):
            break
        name, _, value = message.partition(":")
        if value:
            facts[name.strip()] = value.strip()
    return facts


def _systems(title: str, messages: list[str]) -> dict[str, Any]:
    rows: list[list[str]] = []
    note = ""
    for message in messages:
        if message.startswith("---"):
            break
        cells = message.strip().rsplit(None, _COLUMNS)
        if message.strip().startswith("..."):
            rows.append([message.strip()])
        elif len(cells) == _COLUMNS + 1 and cells[1].isdecimal():
            rows.append(cells)
        elif " frames, " in message:
            note = message
    return {"title": title.removeprefix(_SYSTEMS).strip(" -"), "rows": rows, "note": note}
