"""`dp plot`: learning curves, scaling tests and predictions against labels as pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.cli.options import HelpFormatter
from lockstep.errors import UserError


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "plot",
        help="draw learning curves, scaling tests, predictions against labels",
        description="Draw one picture; what is in the files says which kind. "
        "Learning curves of one or more runs: dp plot run1/lcurve.out run2 -o lcurve.png. "
        "The throughput of a scaling test: dp plot scaling/scaling.json. "
        "Predictions against labels, from what dp test -d PREFIX wrote: dp plot PREFIX, "
        "or some of its files: dp plot detail.f.out.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "FILE",
        nargs="+",
        help="learning curves or folders of runs; a scaling.json or the folder of a scaling test; detail files or "
        "their prefix",
    )
    parser.add_argument(
        "-o",
        "--output",
        help="the picture: .png, .svg or .pdf (default: lcurve.png, scaling.png or parity.png in the current folder)",
    )
    parser.add_argument(
        "--linear", action="store_true", help="a linear axis of steps, which shows the end of a run, not its beginning"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw the picture and say where it is."""
    kinds = {path: _kind(Path(path)) for path in args.FILE}
    if len(set(kinds.values())) > 1:
        listing = ", ".join(f"{path}: {kind}" for path, kind in kinds.items())
        raise UserError(f"one picture shows one kind of thing, these are several: {listing}")
    kind = next(iter(kinds.values()))
    default, title, draw = _KINDS[kind]
    output = args.output or default
    draw(args.FILE, output, args.linear)
    print(f"{title.format(count=len(args.FILE))} drawn to {output}", file=sys.stderr)
    return 0


def _kind(path: Path) -> str:
    from lockstep.observe.parity import detail_files, is_detail_file

    if (path.is_dir() and (path / "scaling.json").is_file()) or path.suffix == ".json":
        return "scaling test"
    if is_detail_file(path) or (not path.exists() and detail_files(path)):
        return "detail files"
    return "learning curve"


def _curves(paths: Sequence[str], output: str, linear: bool) -> None:
    from lockstep.observe.plots import plot_learning_curves

    plot_learning_curves(paths, output, linear=linear)


def _scaling(paths: Sequence[str], output: str, linear: bool) -> None:
    from lockstep.scaling.picture import plot_scaling
    from lockstep.scaling.result import read_result

    if len(paths) > 1:
        raise UserError("one picture shows one scaling test", value=list(paths), remedy="name one of them")
    plot_scaling(read_result(paths[0]), output)


def _parity(paths: Sequence[str], output: str, linear: bool) -> None:
    from lockstep.observe.parity import detail_files, plot_parity

    files = [file for path in map(Path, paths) for file in ([path] if path.is_file() else detail_files(path))]
    plot_parity(files, output)


_Draw = Callable[[Sequence[str], str, bool], None]
_KINDS: dict[str, tuple[str, str, _Draw]] = {
    "learning curve": ("lcurve.png", "Learning curves of {count} run(s)", _curves),
    "scaling test": ("scaling.png", "The scaling test", _scaling),
    "detail files": ("parity.png", "Predictions against labels", _parity),
}
"""For each kind of file: the picture's usual name, what is said about it, and what draws it."""
