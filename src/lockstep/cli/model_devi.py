"""`dp model-devi`: how far several models disagree."""

from __future__ import annotations

import argparse
from pathlib import Path

from lockstep.cli.options import HelpFormatter, add_log_options, checked_system, logged, positive_number, whole_number

_MODELS = [f"graph.{number:03d}" for number in range(4)]


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "model-devi",
        help="compare several models with each other",
        description="Evaluate several models on the same frames and write how far they disagree. Example: "
        "dp model-devi -m a.dp b.dp c.dp d.dp -s data -o model_devi.out",
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "-m", "--models", nargs="+", default=_MODELS, metavar="MODEL", help=".dp models, checkpoints or their prefixes"
    )
    parser.add_argument("-s", "--system", default=".", help="a system, or a folder that is searched for systems")
    parser.add_argument("-o", "--output", default="model_devi.out", help="the file that the result is added to")
    parser.add_argument(
        "-f", "--frequency", type=whole_number, default=1, help="steps between two frames of the trajectory"
    )
    parser.add_argument(
        "--real_error", action="store_true", help="root mean square error against the labels, instead of the spread"
    )
    parser.add_argument("--atomic", action="store_true", help="write the deviation of every atom's force too")
    parser.add_argument(
        "--relative", type=positive_number, metavar="LEVEL", help="divide deviations of forces by their size plus LEVEL"
    )
    parser.add_argument("--relative_v", type=positive_number, metavar="LEVEL", help="the same for virials")
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, and write the file."""
    with logged(args):
        from lockstep.analysis.deviation import (
            REAL_LABELS,
            Measure,
            refuse_different_types,
            warn_about_copies,
            write_deviations,
        )
        from lockstep.analysis.evaluation import open_data, place_alone
        from lockstep.interop.loading import load_potential

        device = place_alone()
        potentials = [load_potential(name).to(device) for name in args.models]
        refuse_different_types(potentials, args.models)
        warn_about_copies(potentials, args.models)
        dataset = open_data(checked_system(args.system), potentials[0], REAL_LABELS if args.real_error else ())
        measure = Measure(args.frequency, args.real_error, args.atomic, args.relative, args.relative_v)
        write_deviations(potentials, dataset, measure, Path(args.output))
    return 0
