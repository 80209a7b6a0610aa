"""Everything that a page shows, as plain data: read from the files of a run folder, whichever of them are there."""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep import __version__
from lockstep.errors import UserError
from lockstep.observe.budget import budget_path, read_budget
from lockstep.observe.parity import SUFFIXES, is_detail_file, read_parity, suffix_of, thin
from lockstep.observe.picture import phase_colour
from lockstep.report.cards import run_cards, scaling_cards
from lockstep.report.folder import RunFolder
from lockstep.report.logfile import LogFacts, find_log, read_log
from lockstep.scaling.result import read_result
from lockstep.training.lcurve import read_lcurve

_ERRORS = {
    "e": ("Energy", "eV/atom"),
    "f": ("Force", "eV/Å"),
    "v": ("Virial", "eV/atom"),
    "ae": ("Atomic energy", "eV"),
    "pf": ("Weighted force", "eV/Å"),
    "": ("Loss, its root", ""),
}
_ROWS, _POINTS, _RANKS = 4000, 4000, 16
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
    config = given if isinstance(given, dict) else {}
    log = find_log(folder)
    facts = read_log(log) if log else LogFacts()
    columns = _columns(folder, config)
    lines = _budget_lines(folder, config)
    page = {
        "kind": "run",
        "curves": _curves(columns),
        "budget": _budget(lines),
        "profile": _profile(folder),
        "parity": _parity(folder),
        "systems": facts.systems or _systems(config),
        "facts": list(facts.facts.items()),
        "warnings": facts.warnings[-20:],
        "tail": facts.tail,
        "input": json.dumps(given, indent=2, ensure_ascii=False) if config else "",
    }
    return page | {"cards": run_cards(columns, lines, config, facts)}


def _display_file(config: Mapping[str, Any]) -> str:
    training = config.get("training")
    return str(training.get("disp_file", "lcurve.out")) if isinstance(training, dict) else "lcurve.out"


def _columns(folder: RunFolder, config: Mapping[str, Any]) -> dict[str, NDArray]:
    path = folder.file(_display_file(config))
    if path is None:
        return {}
    columns = read_lcurve(path)
    return columns if len(columns["step"]) else {}


def _curves(columns: Mapping[str, NDArray]) -> dict[str, Any] | None:
    if not columns:
        return None
    chosen = thin_rows(columns["step"], _ROWS)
    panels = [panel for name in _ERRORS if (panel := _panel(columns, name, chosen))]
    lr = columns.get("lr")
    return {
        "step": columns["step"][chosen].tolist(),
        "panels": panels,
        "lr": None if lr is None else _numbers(lr[chosen]),
    }


def _panel(columns: Mapping[str, NDArray], name: str, chosen: NDArray) -> dict[str, Any] | None:
    title, unit = _ERRORS[name]
    series = []
    for source, label in (("val", "validation"), ("trn", "training")):
        for kind in ("rmse", "mae"):
            values = columns.get("_".join(filter(None, (kind, name, source))))
            if values is not None and np.isfinite(values).any():
                series.append(
                    {"name": f"{label} {kind.upper()}" if name else label, "values": _numbers(values[chosen])}
                )
    return {"title": title, "unit": unit, "series": series} if series else None


def thin_rows(steps: NDArray, most: int) -> NDArray:
    """Which rows to show when there are too many: half of them even in the step, half even in its logarithm."""
    if len(steps) <= most:
        return np.arange(len(steps))
    places = np.geomspace(max(1, steps[0]), steps[-1], most // 2)
    return np.unique(
        np.concatenate(
            [
                np.linspace(0, len(steps) - 1, most // 2).round().astype(int),
                np.searchsorted(steps, places).clip(max=len(steps) - 1),
            ]
        )
    )


def _budget_lines(folder: RunFolder, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    beside = budget_path(_display_file(config))
    path = folder.file(str(beside)) if beside else None
    try:
        return read_budget(path) if path else []
    except ValueError:
        return []


def _budget(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not lines:
        return None
    chosen = thin_rows(np.array([line["step"] for line in lines]), _ROWS)
    shown = [lines[number] for number in chosen]
    phases = dict.fromkeys(name for line in shown for name in line.get("budget", {}))
    speeds = [list(line.get("per_rank_samples_per_s", [])) for line in shown]
    return {
        "step": [line["step"] for line in shown],
        "phases": [
            {"name": name, "colour": phase_colour(name), "share": [line["budget"].get(name, 0.0) for line in shown]}
            for name in phases
        ],
        "samples_per_s": [line.get("samples_per_s") for line in shown],
        "ranks": _rank_series(speeds),
    }


def _rank_series(speeds: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """One line for each rank, or for many ranks the slowest, the middle and the fastest of each moment."""
    size = max(map(len, speeds), default=0)
    if size == 0:
        return []
    # After a restart on another number of workers, rows are of different lengths.
    table = np.array([[*row, *[np.nan] * (size - len(row))] for row in speeds])
    if size <= _RANKS:
        return [{"name": f"rank {rank}", "values": _numbers(table[:, rank])} for rank in range(size)]
    places = {"slowest rank": 0.0, "middle rank": 0.5, "fastest rank": 1.0}
    return [{"name": name, "values": _numbers(np.nanquantile(table, q, axis=1))} for name, q in places.items()]


def _profile(folder: RunFolder) -> dict[str, Any] | None:
    """The communication profiles of the newest job in the folder."""
    paths = [path for path in folder.files() if path.name.startswith("mpi_profile.") and path.suffix == ".json"]
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return None
    job = newest.name.rsplit(".", 2)[0]
    records = [folder.json(path.name) for path in paths if path.name.rsplit(".", 2)[0] == job]
    records = sorted((r for r in records if isinstance(r, dict) and "own" in r), key=lambda r: r["rank"])
    if not records:
        return None
    routines: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for name, tallies in record.get("routines", {}).items():
            routines[name] = _add_sizes(routines.get(name, []), tallies)
    return {
        "job": records[0].get("job", ""),
        "backend": records[0].get("backend", ""),
        "ranks": [{"rank": record["rank"], **record["own"]} for record in records],
        "routines": [{"name": name, "sizes": sizes} for name, sizes in routines.items()],
    }


def _add_sizes(sums: list[dict[str, Any]], tallies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add the tallies of one more rank, message size by message size (powers of two)."""
    by_size = {_size_class(tally): dict(tally) for tally in sums}
    for tally in tallies:
        place = by_size.setdefault(_size_class(tally), {"calls": 0, "bytes": 0, "seconds": 0.0, "wait": 0.0})
        for key in place:
            place[key] += tally.get(key, 0)
    return [by_size[size] for size in sorted(by_size)]


def _size_class(tally: Mapping[str, Any]) -> int:
    mean = tally["bytes"] / max(1, tally["calls"])
    return (int(mean) - 1).bit_length() if mean >= 1 else -1


def _parity(folder: RunFolder) -> list[dict[str, Any]]:
    """The detail files of `dp test`; of a quantity in two units the one for each atom."""
    paths = {path.name: path for path in folder.files() if is_detail_file(path)}
    panels = []
    for name, path in paths.items():
        suffix = suffix_of(path)
        if suffix in (".e.out", ".v.out") and name.removesuffix(suffix) + suffix[:2] + "_peratom.out" in paths:
            continue
        with suppress(UserError):
            panels.append((list(SUFFIXES).index(str(suffix)), name, _parity_panel(path)))
    return [panel for _, _, panel in sorted(panels, key=lambda item: item[:2]) if panel]


def _parity_panel(path: Path) -> dict[str, Any] | None:
    parity = read_parity(path)
    if parity is None:
        return None
    chosen = thin(parity.label, parity.predicted, _POINTS)
    order = chosen[np.argsort(parity.label[chosen], kind="stable")]
    return {
        "title": parity.quantity,
        "name": parity.name,
        "unit": parity.unit,
        "label": _numbers(parity.label[order]),
        "predicted": _numbers(parity.predicted[order]),
        "count": len(parity.label),
        "rmse": parity.rmse,
        "mae": parity.mae,
    }


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
    paths = [path for path in folder.files() if path.suffix == ".safetensors"]
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return {}
    with suppress(OSError, ValueError, KeyError, TypeError, struct.error), newest.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, 100_000_000)))
        versions = json.loads(header["__metadata__"]["info"])["versions"]
        return {str(name): str(text) for name, text in versions.items()}
    return {}


def _numbers(values: NDArray) -> list[float | None]:
    """For JSON, which has no nan: six digits are more than a screen shows."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
