"""What all pictures share: style, colours, and a file that appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.errors import UserError
from lockstep.files import written_whole

_FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can tell apart; the palest left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PHASES = {
    "data": "#8c8c8c",
    "geometry": "#444444",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "communication": "#D55E00",
    "wait": "#E69F00",
    "optimizer": "#009E73",
    "validation": "#CC79A7",
    "checkpoint": "#7f6aa8",
    "output": "#c9c9c9",
}
_INK, _GRID = "#333333", "#e4e4e4"

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
}


def phase_colour(name: str) -> str:
    """The colour of a phase of a step, in pictures and pages alike; brown for one of a later version."""
    return _PHASES.get(name, "#8a6d3b")


def checked_output(output: str) -> Path:
    """The file of a picture, if its suffix says what kind it is to be."""
    target = Path(output)
    if target.suffix.lower() not in _FORMATS:
        raise UserError(
            "unknown kind of picture", where="--output", value=output, remedy=f"end the name in {', '.join(_FORMATS)}"
        )
    return target


def save(target: Path, draw: Callable[[], Any]) -> None:
    """Write the figure that `draw` makes; the suffix says what kind of file."""
    with written_whole(target) as temporary:
        figure = draw()
        figure.savefig(temporary, format=target.suffix[1:].lower(), dpi=160)
        pyplot().close(figure)


def pyplot() -> Any:
    """matplotlib's pyplot, without any window."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "drawing needs matplotlib, which is not installed", remedy="pip install 'lockstep-dp[plot]'"
        ) from error
    # No window is opened, whatever display there is.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
