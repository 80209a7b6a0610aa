"""Predictions against labels, from the detail files of `dp test -d`: numbers, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import UserError
from lockstep.observe.picture import COLOURS, STYLE, checked_output, pyplot, save

SUFFIXES = {
    ".e_peratom.out": ("Energy", "eV/atom"),
    ".e.out": ("Energy", "eV"),
    ".f.out": ("Force", "eV/Å"),
    ".v_peratom.out": ("Virial", "eV/atom"),
    ".v.out": ("Virial", "eV"),
    ".s.out": ("Stress", "eV/Å³"),
}
"""How the names of detail files end, and what is in them; in the order in which they are shown."""
_SHOWN = (".e_peratom.out", ".f.out", ".v_peratom.out")
"""Of a whole set; the others say the same in other units."""
_FEW = 4000


@dataclass(frozen=True)
class Parity:
    """One kind of quantity, all its components in one row.

    Attributes:
        name: the prefix of the detail files.
        label: what the data say; finite.
    """

    name: str
    quantity: str
    unit: str
    label: NDArray
    predicted: NDArray

    @property
    def rmse(self) -> float:
        return float(np.sqrt(np.mean((self.predicted - self.label) ** 2)))

    @property
    def mae(self) -> float:
        return float(np.mean(np.abs(self.predicted - self.label)))


def suffix_of(path: Path) -> str | None:
    """How the name of a detail file ends; None for any other file."""
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)


def is_detail_file(path: Path) -> bool:
    """Whether a file is one by its name and its first line."""
    if suffix_of(path) is None or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return " data_" in file.readline(100_000)


def detail_files(prefix: Path) -> list[Path]:
    """The files of `dp test -d PREFIX` that are worth a picture each."""
    paths = [prefix.with_name(prefix.name + suffix) for suffix in _SHOWN]
    return [path for path in paths if is_detail_file(path)]


def read_parity(path: Path) -> Parity | None:
    """The content of a detail file; None if its systems have no such labels."""
    suffix = suffix_of(path)
    assert suffix is not None
    quantity, unit = SUFFIXES[suffix]
    try:
        rows = np.loadtxt(path, ndmin=2, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read as a detail file of dp test: {error}", where=str(path)) from error
    if rows.shape[1] % 2:
        raise UserError(f"has {rows.shape[1]} columns, labels and predictions cannot be told apart", where=str(path))
    label, predicted = (half.ravel() for half in np.hsplit(rows, 2))
    good = np.isfinite(label) & np.isfinite(predicted)
    if not good.any():
        return None
    return Parity(path.name.removesuffix(suffix), quantity, unit, label[good], predicted[good])


def thin(label: NDArray, predicted: NDArray, most: int) -> NDArray:
    """Which points to show when there are too many: the worst ones always, of the others every n-th."""
    if len(label) <= most:
        return np.arange(len(label))
    worst = np.argsort(-np.abs(predicted - label), kind="stable")[: most // 10]
    others = np.linspace(0, len(label) - 1, most - len(worst)).round().astype(int)
    return np.unique(np.concatenate([worst, others]))


def plot_parity(paths: Sequence[Path], output: str) -> None:
    """Draw detail files into one picture, a panel each."""
    target = checked_output(output)
    found = [parity for path in paths if (parity := read_parity(path)) is not None]
    if not found:
        raise UserError("the systems have no labels to compare with", where=", ".join(map(str, paths)))
    save(target, lambda: draw_parity(found))


def draw_parity(panels: Sequence[Parity]) -> Any:
    """A figure with one panel for each."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4.1 * len(panels), 4.2), squeeze=False, layout="constrained"
        )
        several = len({parity.name for parity in panels}) > 1
        for axis, parity in zip(axes[0], panels, strict=True):
            _draw_panel(axis, parity, several)
        return figure


def _draw_panel(axis: Any, parity: Parity, named: bool) -> None:
    low, high = (float(f([f(parity.label), f(parity.predicted)])) for f in (np.min, np.max))
    margin = 0.04 * (high - low) or 1.0
    ends = (low - margin, high + margin)
    alpha = 0.7 if len(parity.label) < _FEW else 0.2
    axis.plot(ends, ends, color="#999999", linewidth=1, zorder=1)
    # As an image even in SVG: a million circles make a file that no viewer opens.
    axis.plot(parity.label, parity.predicted, ".", color=COLOURS[0], markersize=3, alpha=alpha, rasterized=True)
    axis.set(xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel(f"Label ({parity.unit})")
    axis.set_ylabel(f"Prediction ({parity.unit})")
    title = f"{parity.quantity}, {parity.name}" if named else parity.quantity
    axis.set_title(title, loc="left", fontweight="bold")
    note = f"RMSE {parity.rmse:.3g} {parity.unit}\nMAE {parity.mae:.3g} {parity.unit}\n{len(parity.label):,} numbers"
    axis.text(0.04, 0.96, note, transform=axis.transAxes, verticalalignment="top")
