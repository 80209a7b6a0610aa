"""A strict reader of timelines: everything that a viewer would have to forgive is an error here."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    name: str
    began: float
    ended: float
    details: dict[str, Any]


Tracks = dict[tuple[int, str], list[Slice]]
"""From rank and name of a track to its events in order of time."""


def read_trace(path: Path, closed: bool = True) -> Tracks:
    """The events of a trace; `closed` is false for a file whose writer was killed."""
    text = path.read_text()
    events = json.loads(text if closed else _mended(text))
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert len(set(names.items())) == len(names)
    tracks: Tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in ("X", "M"), event
        assert event["pid"] in processes, event
        if event["ph"] == "X":
            assert event["ts"] >= 0, event
            assert event["dur"] >= 0, event
            began, ended = event["ts"], event["ts"] + event["dur"]
            track = tracks[event["pid"], names[event["pid"], event["tid"]]]
            assert not track or began >= track[-1].ended - 2e-3, (track[-1:], event)
            track.append(Slice(event["name"], began, ended, event["args"]))
    return tracks


def _mended(text: str) -> str:
    """As viewers do it: a closing bracket is added. A last line that was cut short is left out."""
    whole = text if text.endswith("}") else text[: text.rindex(",\n")]
    return whole + "]"
