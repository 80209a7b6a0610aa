"""Learning curves as a picture: errors of one or more runs over their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import UserError
from lockstep.observe.lcurve import read_lcurve
from lockstep.observe.picture import COLOURS, STYLE, checked_output, pyplot, save

_PANELS = {
    "e": ("Energy", "eV/atom"),
    "f": ("Force", "eV/Å"),
    "v": ("Virial", "eV/atom"),
    "ae": ("Atomic energy", "eV"),
    "pf": ("Weighted force", "eV/Å"),
}
_KINDS = ("rmse", "mae")
_POINTS = 100
_BLUR = 0.015
"""Standard deviation of the smoothing, as a part of the axis."""
_DASHES = (0, (3.5, 1.5))


@dataclass(frozen=True)
class Run:
    """One learning curve and its name in the legend."""

    name: str
    columns: dict[str, NDArray]

    def errors(self, panel: str, source: str) -> NDArray | None:
        """The errors of a panel on `trn` or `val` data; None where the run has none that are finite."""
        for kind in _KINDS:
            values = self.columns.get(f"{kind}_{panel}_{source}")
            if values is not None and np.isfinite(values).any() and (values > 0).any():
                return values
        return None

    @property
    def kind(self) -> str:
        return "MAE" if any(name.startswith("mae") for name in self.columns) else "RMSE"


def plot_learning_curves(paths: Sequence[str], output: str, linear: bool = False) -> None:
    """Draw the curves into one picture; the file appears whole or not at all."""
    target = checked_output(output)
    runs = read_runs(paths)
    save(target, lambda: draw(runs, linear))


def read_runs(paths: Sequence[str]) -> list[Run]:
    """The runs behind files or folders, under the shortest names that tell them apart."""
    files = [Path(path) / "lcurve.out" if Path(path).is_dir() else Path(path) for path in paths]
    runs = [Run(name, read_lcurve(file)) for name, file in zip(_names(files), files, strict=True)]
    for run, file in zip(runs, files, strict=True):
        if not len(run.columns["step"]):
            raise UserError("the learning curve has no rows yet", where=str(file), remedy="let the run begin first")
    return runs


def draw(runs: Sequence[Run], linear: bool = False) -> Any:
    """A figure with one panel for each kind of error that any of the runs has."""
    plt = pyplot()
    panels = [name for name in _PANELS if any(run.errors(name, s) is not None for run in runs for s in ("trn", "val"))]
    if not panels:
        raise UserError("the learning curves hold no errors that could be drawn")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(0.7 + 4.3 * len(panels), 3.9), squeeze=False, layout="constrained"
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, panel, runs, linear)
        _legend(figure, runs)
        return figure


def smooth(steps: NDArray, values: NDArray, linear: bool) -> tuple[NDArray, NDArray]:
    """The trend behind the noise of single batches: geometric means, weighted by nearness on the axis."""
    good = np.isfinite(values) & (values > 0) & (steps > 0)
    steps, values = steps[good], values[good]
    if len(steps) <= 2 * _POINTS:
        return steps, values
    place = steps.astype(np.float64) if linear else np.log(steps)
    length = place[-1] - place[0]
    chosen = np.unique(np.searchsorted(place, np.linspace(place[0], place[-1], _POINTS)).clip(max=len(place) - 1))
    nearness = np.exp(-0.5 * ((place[chosen, None] - place) / (_BLUR * length)) ** 2)
    return steps[chosen], np.exp(nearness @ np.log(values) / nearness.sum(axis=1))


def _draw_panel(axis: Any, panel: str, runs: Sequence[Run], linear: bool) -> None:
    title, unit = _PANELS[panel]
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        steps = run.columns["step"]
        for source, style, width in (("trn", _DASHES, 1.2), ("val", "solid", 1.8)):
            values = run.errors(panel, source)
            if values is None:
                continue
            x, y = smooth(steps, values, linear)
            if len(x) < len(steps):
                axis.plot(steps, values, color=colour, linewidth=0.6, alpha=0.16, zorder=1)
            front = 3 if source == "val" else 2
            axis.plot(x, y, color=colour, linewidth=width, linestyle=style, zorder=front)
    axis.set_xscale("linear" if linear else "log")
    axis.set_yscale("log")
    axis.margins(x=0.02)
    axis.set_xlabel("Training step")
    kinds = " / ".join(dict.fromkeys(run.kind for run in runs))
    axis.set_ylabel(f"{kinds} ({unit})")
    axis.set_title(title, loc="left", fontweight="bold")
    _ticks(axis, linear)


def _ticks(axis: Any, linear: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_ylim()
    # Within a decade or two there are too few powers of ten to read values off.
    narrow = high / low < 100
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    if linear:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(figure: Any, runs: Sequence[Run]) -> None:
    from matplotlib.lines import Line2D

    sources: dict[str, tuple[str, Any]] = {"val": ("validation", "solid"), "trn": ("training", _DASHES)}
    shown = [s for s in sources if any(run.errors(p, s) is not None for run in runs for p in _PANELS)]
    handles = [Line2D([], [], color=COLOURS[n % len(COLOURS)], linewidth=2, label=r.name) for n, r in enumerate(runs)]
    handles = handles if len(runs) > 1 else []
    colour = COLOURS[0] if len(runs) == 1 else "#777777"
    handles += [
        Line2D([], [], color=colour, linestyle=sources[s][1], linewidth=1.7, label=sources[s][0]) for s in shown
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), frameon=False)


def _names(files: Sequence[Path]) -> list[str]:
    """The parts of the paths that differ; the whole path where the same file is given twice."""
    parts = [file.absolute().parts for file in files]
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    names = [Path(*p[shared:]) for p in parts]
    if all(name.name == "lcurve.out" and len(name.parts) > 1 for name in names):
        names = [name.parent for name in names]
    return [str(name) for name in names]
