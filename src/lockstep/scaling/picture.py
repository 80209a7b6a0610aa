"""A scaling test as a picture: throughput over workers, and what a step's time is spent on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.observe.picture import COLOURS, STYLE, checked_output, phase_colour, pyplot, save

_VISIBLE = 0.002


def plot_scaling(result: Mapping[str, Any], output: str) -> None:
    """Draw the result of a scaling test to a file."""
    save(checked_output(output), lambda: draw_scaling(result))


def draw_scaling(result: Mapping[str, Any]) -> Any:
    """The figure."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9), layout="constrained")
        _throughput(left, result)
        _steps(right, result)
        return figure


def _throughput(axis: Any, result: Mapping[str, Any]) -> None:
    rows, prediction = result["rows"], result["prediction"]
    predicted = prediction["rows"] if prediction else []
    ends = [min(r["workers"] for r in rows), max(r["workers"] for r in [*rows, *predicted])]
    alone = rows[0]["samples_per_s"] / rows[0]["workers"]
    axis.plot(ends, [alone * w for w in ends], color="#999999", linestyle="dotted", label="ideal")
    for over, face, label in ((False, COLOURS[0], "measured"), (True, "#bbbbbb", "measured, oversubscribed")):
        chosen = [r for r in rows if r["oversubscribed"] is over]
        if chosen:
            axis.plot(*_xy(chosen), "o", markersize=7, color=face, label=label, zorder=3)
    if predicted:
        axis.plot(*_xy(predicted), "o--", fillstyle="none", color=COLOURS[1], label="predicted, not measured")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    _plain(axis.xaxis, [r["workers"] for r in [*rows, *predicted]])
    axis.set_xlabel("Workers")
    axis.set_ylabel("Samples per second")
    axis.set_title(f"Throughput, {result['mode']} scaling", loc="left", fontweight="bold")
    axis.legend(frameon=False)


def _xy(rows: list[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    return [r["workers"] for r in rows], [r["samples_per_s"] for r in rows]


def _plain(axis: Any, values: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(sorted(set(values))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def _steps(axis: Any, result: Mapping[str, Any]) -> None:
    rows = result["rows"]
    names = [str(row["workers"]) + (" †" if row["oversubscribed"] else "") for row in rows]
    below = [0.0] * len(rows)
    for phase in dict.fromkeys(name for row in rows for name in row["budget"]):
        heights = [1000 * row["seconds_per_step"] * row["budget"].get(phase, 0.0) for row in rows]
        if max(heights) < _VISIBLE * max(1000 * row["seconds_per_step"] for row in rows):
            continue
        axis.bar(names, heights, 0.62, bottom=below, color=phase_colour(phase), label=phase)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.grid(axis="x", visible=False)
    axis.set_xlabel("Workers" + (" († oversubscribed)" if any(row["oversubscribed"] for row in rows) else ""))
    axis.set_ylabel("Milliseconds per step")
    axis.set_title("Where a step's time goes", loc="left", fontweight="bold")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
