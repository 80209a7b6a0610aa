"""The tables of a scaling test, in Markdown that is also readable as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.phases import COMMUNICATION, WAIT

_VISIBLE = 0.0005
_MARK = "†"


def result_markdown(result: Mapping[str, Any]) -> str:
    """The whole report of a test."""
    parts = [
        f"# {result['mode'].capitalize()} scaling of {result['input']}",
        _conditions(result),
        _table(*_speeds(result)),
        _footnote(result),
        "## Where the time of a step goes",
        _table(*_budget(result)),
        "## Prediction",
        _prediction(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(result: Mapping[str, Any]) -> str:
    batch = "the same batch for every worker"
    if result["mode"] == "strong":
        first = result["rows"][0]
        count = first["workers"] * first["accumulate"] // first["per_frame"]
        batch = f"the same global batch for all runs ({count} micro-batch{'es' if count > 1 else ''})"
        if any(row["per_frame"] > 1 for row in result["rows"]):
            batch += ", whose atoms are shared where workers are more"
    threads = f"{result['threads']} thread(s) each" if result["threads"] else "cores shared by the workers"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{batch[0].upper()}{batch[1:]}, {threads}, launcher {result['launcher']}, {result['places']} "
        f"{'GPU' if result['device'] == 'cuda' else 'core'}(s) on {result['host']}, "
        f"load of other programs {result['load']:g}.\n"
        f"Median of {result['steps']} steps after {result['warmup']} of warm-up; {result['date']}; {versions}."
    )


def _speeds(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    first = result["rows"][0]["workers"]
    against = "" if first == 1 else f" against {first}"
    header = [
        "Num of workers",
        *_sharing_header(result),
        "Seconds every 100 samples",
        "Samples per second",
        f"Speed up{against}",
    ]
    rows = [_speed(row, result) for row in result["rows"]]
    return [*header, "Efficiency", "Spread"], [
        [*cells, f"±{50 * row['spread']:.0f} %"] for cells, row in zip(rows, result["rows"], strict=True)
    ]


def _sharing_header(result: Mapping[str, Any]) -> list[str]:
    return ["Workers per frame"] if result["mode"] == "strong" else []


def _speed(row: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    workers, mark = row["workers"], f" {_MARK}" if row.get("oversubscribed") else ""
    each = f"{row['samples_per_s'] / workers:.2f}" + (f"\\*{workers}" if workers > 1 else "")
    return [
        f"{workers}{mark}",
        *(str(row["per_frame"]) for _ in _sharing_header(result)),
        f"{row['seconds_per_100_samples']:.4f}",
        each,
        f"{row['speed_up']:.2f}",
        f"{100 * row['efficiency']:.0f} %",
    ]


def _footnote(result: Mapping[str, Any]) -> str:
    if not any(row["oversubscribed"] for row in result["rows"]):
        return ""
    kind = "GPUs" if result["device"] == "cuda" else "cores"
    return (
        f"{_MARK} oversubscribed: more workers (times threads) than the {result['places']} {kind} of this machine. "
        "These rows say little about more workers on more machines and are left out of the prediction."
    )


def _budget(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = result["rows"]
    names = [name for name in _phases(rows) if any(row["budget"].get(name, 0.0) > _VISIBLE for row in rows)]
    header = ["Num of workers", "Step (ms)", *names]
    return header, [
        [
            str(row["workers"]),
            f"{1000 * row['seconds_per_step']:.2f}",
            *(f"{100 * row['budget'].get(name, 0.0):.1f} %" for name in names),
        ]
        for row in rows
    ]


def _phases(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["budget"]))


def _prediction(result: Mapping[str, Any]) -> str:
    prediction = result["prediction"]
    if prediction is None:
        return "None: it needs at least two runs with a core (or GPU) for each worker and thread."
    seconds = prediction["seconds"]
    fitted = ", ".join(str(count) for count in prediction["fitted_to"])
    errors = ", ".join(f"{100 * error:+.1f} %" for error in prediction["errors"])
    held = prediction["held_out_error"]
    lines = [
        f"**Not measured**: what a simple cost model fitted to {fitted} workers says, `{prediction['formula']}`, with",
        ", ".join(f"{name} {1000 * value:.3g} ms" for name, value in seconds.items()) + ".",
        f"Its error on the measured points: {errors}.",
    ]
    if held is not None:
        lines.append(f"Fitted without the most workers, it misses them by {100 * held:+.1f} %.")
    lines.append("It knows nothing of slower links between machines, nor of caches and memory shared within one.")
    return "\n".join(lines) + "\n\n" + _table(*_predicted(result, prediction))


def _predicted(result: Mapping[str, Any], prediction: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = _speeds(result)[0][:-1]
    header[0] = "Workers (predicted)"
    return header, [_speed(row, result) for row in prediction["rows"]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def shares_line(budget: Mapping[str, float]) -> str:
    """The shares that decide about scaling, for a progress line."""
    return f"communication {100 * budget.get(COMMUNICATION, 0.0):.0f} %, wait {100 * budget.get(WAIT, 0.0):.0f} %"
