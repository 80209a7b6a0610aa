"""The cards on top of a page: the few numbers one looks for first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.logfile import LogFacts

Card = dict[str, Any]
_RECENT = 20


def run_cards(
    columns: Mapping[str, NDArray], lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any], log: LogFacts
) -> list[Card]:
    """For a run."""
    return [
        *_steps(columns, lines, config, log),
        *_errors(columns),
        *_speed(lines),
        *_wall(lines, log),
        *_place(lines, log),
    ]


def scaling_cards(result: Mapping[str, Any]) -> list[Card]:
    """For a scaling test."""
    last = result["rows"][-1]
    cards = [
        _card("Workers", ", ".join(str(row["workers"]) for row in result["rows"]), f"{result['mode']} scaling"),
        _card("Speed up", f"{last['speed_up']:.2f}", f"on {last['workers']} workers"),
        _card("Efficiency", f"{100 * last['efficiency']:.0f} %", f"on {last['workers']} workers"),
        _card("Samples per second", f"{last['samples_per_s']:.4g}", f"on {last['workers']} workers"),
    ]
    if result["prediction"] and result["prediction"]["rows"]:
        far = result["prediction"]["rows"][-1]
        cards.append(_card("Predicted", f"{far['speed_up']:.0f} ×", f"on {far['workers']} workers, not measured"))
    kind = "GPUs" if result["device"] == "cuda" else "cores"
    return [*cards, _card("Device", result["device"], f"{result['places']} {kind}, {result['launcher']}")]


def _card(label: str, value: str, note: str = "", progress: float | None = None, unit: str = "") -> Card:
    return {"label": label, "value": value, "unit": unit, "note": note, "progress": progress}


def _steps(
    columns: Mapping[str, NDArray], lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any], log: LogFacts
) -> list[Card]:
    done = max([int(columns["step"][-1]) if columns else 0, lines[-1]["step"] if lines else 0])
    if not done:
        return [_card("Steps", "0", "waiting for the first display")] if config or log.facts else []
    total = (config.get("training") or {}).get("numb_steps")
    if not total:
        return [_card("Steps", f"{done:,}", "finished" if log.finished else "")]
    if done >= total or log.finished:
        return [_card("Steps", f"{done:,}", "finished", 1.0)]
    left = _left(lines, total - done)
    return [_card("Steps", f"{done:,}", f"of {total:,}" + (f", {left} left" if left else ""), done / total)]


def _left(lines: Sequence[Mapping[str, Any]], steps: int) -> str:
    paces = [line["wall"] / line["steps"] for line in lines[-_RECENT:] if line.get("steps") and "wall" in line]
    return str(timedelta(seconds=round(median(paces) * steps))) if paces else ""


def _errors(columns: Mapping[str, NDArray]) -> list[Card]:
    cards = []
    for name, title, unit in (("e", "Energy", "meV/atom"), ("f", "Force", "meV/Å")):
        for source, label in (("val", "validation"), ("trn", "training")):
            values = columns.get(f"rmse_{name}_{source}")
            if values is not None and np.isfinite(values[-1]):
                cards.append(_card(f"{title} RMSE", f"{1e3 * values[-1]:.3g}", f"{label}, last display", unit=unit))
                break
    return cards


def _speed(lines: Sequence[Mapping[str, Any]]) -> list[Card]:
    # Without the first interval, in which programs are compiled and caches filled.
    speeds = [line["samples_per_s"] for line in lines[1:] if line.get("samples_per_s")]
    if not speeds:
        return []
    busy = [line["busy"] for line in lines[1:] if line.get("busy") is not None]
    note = f"device busy {100 * median(busy):.0f} % of the time" if busy else ""
    return [_card("Samples per second", f"{median(speeds):.4g}", note)]


def _wall(lines: Sequence[Mapping[str, Any]], log: LogFacts) -> list[Card]:
    seconds = log.wall if log.wall is not None else sum(line.get("wall", 0.0) for line in lines)
    return [_card("Wall time", str(timedelta(seconds=round(seconds))), "training only")] if seconds else []


def _place(lines: Sequence[Mapping[str, Any]], log: LogFacts) -> list[Card]:
    workers = len(lines[-1].get("per_rank_samples_per_s", [])) if lines else 0
    count = str(workers or log.facts.get("world size", ""))
    nodes = log.facts.get("node list", "")
    cards = [_card("Workers", count, f"on {nodes.strip('[]').replace(chr(39), '')}" if nodes else "")] if count else []
    if "computing device" in log.facts:
        threads = log.facts.get("num_intra_threads")
        note = f"{threads} thread(s) a worker" if threads else ""
        cards.append(_card("Device", log.facts["computing device"], note))
    return cards
