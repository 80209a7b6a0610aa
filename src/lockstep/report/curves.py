"""The series of a page: learning curves, the budget of steps, the throughput of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.observe.picture import phase_colour

_ERRORS = {
    "e": ("Energy", "eV/atom"),
    "f": ("Force", "eV/Å"),
    "v": ("Virial", "eV/atom"),
    "ae": ("Atomic energy", "eV"),
    "pf": ("Weighted force", "eV/Å"),
    "": ("Loss, its root", ""),
}
_ROWS, _RANKS = 4000, 16


def curves_data(columns: Mapping[str, NDArray]) -> dict[str, Any] | None:
    if not columns:
        return None
    chosen = thin_rows(columns["step"], _ROWS)
    panels = [panel for name in _ERRORS if (panel := _panel(columns, name, chosen))]
    lr = columns.get("lr")
    return {
        "step": columns["step"][chosen].tolist(),
        "panels": panels,
        "lr": None if lr is None else numbers(lr[chosen]),
    }


def _panel(columns: Mapping[str, NDArray], name: str, chosen: NDArray) -> dict[str, Any] | None:
    title, unit = _ERRORS[name]
    series = []
    for source, label in (("val", "validation"), ("trn", "training")):
        for kind in ("rmse", "mae"):
            values = columns.get("_".join(filter(None, (kind, name, source))))
            if values is not None and np.isfinite(values).any():
                series.append({"name": f"{label} {kind.upper()}" if name else label, "values": numbers(values[chosen])})
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


def budget_data(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not lines:
        return None
    chosen = thin_rows(np.array([line["step"] for line in lines]), _ROWS)
    shown = [lines[number] for number in chosen]
    shares = [line.get("budget", {}) for line in shown]
    phases = dict.fromkeys(name for share in shares for name in share)
    speeds = [list(line.get("per_rank_samples_per_s", [])) for line in shown]
    return {
        "step": [line["step"] for line in shown],
        "phases": [
            {
                "name": name,
                "colour": phase_colour(name),
                "share": [line.get("budget", {}).get(name, 0.0) for line in shown],
            }
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
        return [{"name": f"rank {rank}", "values": numbers(table[:, rank])} for rank in range(size)]
    places = {"slowest rank": 0.0, "middle rank": 0.5, "fastest rank": 1.0}
    return [{"name": name, "values": numbers(np.nanquantile(table, q, axis=1))} for name, q in places.items()]


def numbers(values: NDArray) -> list[float | None]:
    """For JSON, which has no nan: six digits are more than a screen shows."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
