"""Everything that a page shows, as plain data: read from the files of a run folder, whichever of them are there."""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from numpy.typing import NDArray

from lockstep.observe.budget import budget_path, read_budget
from lockstep.observe.lcurve import read_lcurve
from lockstep.observe.picture import phase_colour
from lockstep.report.cards import run_cards, scaling_cards
from lockstep.report.curves import budget_data, curves_data
from lockstep.report.details import parity_data
from lockstep.report.folder import RunFolder
from lockstep.report.logfile import LogFacts, find_log, read_log
from lockstep.report.profiles import profile_data
from lockstep.scaling.result import read_result
from lockstep.version import __version__

_LIBRARIES = ("torch", "numpy", "mpi4py")


def collect(folder: RunFolder) -> dict[str, Any]:
    """The data of the page about a folder."""
    page = {
        "title": folder.name,
        "folder": str(folder.root),
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
        "versions": _versions(folder),
        "fingerprint": folder.fingerprint(),
    }
    if folder.file("scaling.json"):
        return page | _scaling(folder)
    return page | _run(folder)


def is_empty(page: Mapping[str, Any]) -> bool:
    """Whether a folder had nothing to show."""
    shown = ("curves", "budget", "profile", "parity", "input", "scaling", "systems")
    return not any(page.get(name) for name in shown)


def _scaling(folder: RunFolder) -> dict[str, Any]:
    result = read_result(folder.root)
    phases = list(dict.fromkeys(name for row in result["rows"] for name in row["budget"]))
    return {
        "kind": "scaling",
        "scaling": result,
        "phases": [{"name": name, "colour": phase_colour(name)} for name in phases],
        "cards": scaling_cards(result),
    }


def _run(folder: RunFolder) -> dict[str, Any]:
    given = folder.json("out.json")
    config = given if isinstance(given, dict) and isinstance(given.get("training"), dict) else {}
    log = find_log(folder)
    facts = read_log(log) if log else LogFacts()
    columns = _columns(folder, config)
    lines = _budget_lines(folder, config)
    page = {
        "kind": "run",
        "curves": curves_data(columns),
        "budget": budget_data(lines),
        "profile": profile_data(folder),
        "parity": parity_data(folder),
        "systems": facts.systems or _systems(config),
        "facts": list(facts.facts.items()),
        "warnings": facts.warnings[-20:],
        "tail": facts.tail,
        "input": json.dumps(given, indent=2, ensure_ascii=False) if config else "",
    }
    return page | {"cards": run_cards(columns, lines, config, facts)}


def _display_file(config: Mapping[str, Any]) -> str:
    return str(config.get("training", {}).get("disp_file", "lcurve.out"))


def _columns(folder: RunFolder, config: Mapping[str, Any]) -> dict[str, NDArray]:
    path = folder.file(_display_file(config))
    if path is None:
        return {}
    columns = read_lcurve(path)
    return columns if len(columns["step"]) else {}


def _budget_lines(folder: RunFolder, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    beside = budget_path(_display_file(config))
    path = folder.file(str(beside)) if beside else None
    try:
        lines = read_budget(path) if path else []
    except ValueError:
        return []
    return [line for line in lines if isinstance(line, dict) and "step" in line]


def _systems(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Without a log, the paths of the input file are all that is known."""
    training = config.get("training", {})
    tables = []
    for kind in ("training", "validation"):
        section = training.get(f"{kind}_data") or {}
        systems = section.get("systems", [])
        names = [systems] if isinstance(systems, str) else systems
        if names:
            tables.append({"title": kind.capitalize(), "rows": [[str(name)] for name in names], "note": ""})
    return tables


def _versions(folder: RunFolder) -> list[tuple[str, str]]:
    found = [("Lockstep, of this page", __version__), ("Python, of this page", platform.python_version())]
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found.append((f"{name}, of this page", version(name)))
    return [*((f"{name}, of the checkpoint", text) for name, text in _of_checkpoint(folder).items()), *found]


def _of_checkpoint(folder: RunFolder) -> dict[str, str]:
    """The versions that the newest checkpoint was written with; its header is JSON, so no weights are read."""
    newest = folder.newest(path for path in folder.files() if path.suffix == ".safetensors")
    if newest is None:
        return {}
    with suppress(OSError, ValueError, KeyError, TypeError, struct.error), newest.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, 100_000_000)))
        versions = json.loads(header["__metadata__"]["info"])["versions"]
        return {str(name): str(text) for name, text in versions.items()}
    return {}
