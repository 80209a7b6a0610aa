"""`dp plot`: learning curves as a picture."""

from __future__ import annotations

import argparse
import sys

from lockstep.cli.options import HelpFormatter


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "plot",
        help="draw learning curves",
        description="Draw the learning curves of one or more runs into one picture. Example: "
        "dp plot run1/lcurve.out run2/lcurve.out -o lcurve.png",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("LCURVE", nargs="+", help="learning curves, or folders of runs that have an lcurve.out")
    parser.add_argument("-o", "--output", default="lcurve.png", help="the picture: .png, .svg or .pdf")
    parser.add_argument(
        "--linear", action="store_true", help="a linear axis of steps, which shows the end of a run, not its beginning"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw the picture and say where it is."""
    from lockstep.observe.plots import plot_learning_curves

    plot_learning_curves(args.LCURVE, args.output, linear=args.linear)
    print(f"Learning curves of {len(args.LCURVE)} run(s) drawn to {args.output}", file=sys.stderr)
    return 0
