"""The communication profiles of all ranks, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.folder import RunFolder


def profile_data(folder: RunFolder) -> dict[str, Any] | None:
    """The communication profiles of the newest job in the folder."""
    paths = [path for path in folder.files() if path.name.startswith("mpi_profile.") and path.suffix == ".json"]
    newest = folder.newest(paths)
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
