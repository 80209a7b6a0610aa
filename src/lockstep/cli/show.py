"""`dp show`: what a model is."""

from __future__ import annotations

import argparse
import logging

from lockstep.cli.options import add_log_options, logged

log = logging.getLogger(__name__)

_ATTRIBUTES = (
    "model-branch",
    "type-map",
    "descriptor",
    "fitting-net",
    "size",
    "observed-type",
    "serialization-tree",
)
_USUAL = ("type-map", "descriptor", "fitting-net", "size")


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "show",
        help="show what a model is",
        description="Show what a model or a checkpoint holds. Example: dp show model.dp type-map size",
    )
    parser.add_argument("INPUT", help="a .dp model, a checkpoint, its prefix, or the folder of a run")
    parser.add_argument(
        "ATTRIBUTES",
        nargs="*",
        metavar="ATTRIBUTE",
        help=f"any of {', '.join(_ATTRIBUTES)} (default: {' '.join(_USUAL)})",
    )
    add_log_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Show the attributes asked for."""
    unknown = [name for name in args.ATTRIBUTES if name not in _ATTRIBUTES]
    if unknown:
        args.parser.error(f"unknown attribute {unknown[0]!r}: choose from {', '.join(_ATTRIBUTES)}")
    with logged(args):
        from lockstep.analysis.description import describe
        from lockstep.interop.loading import load_potential

        potential = load_potential(args.INPUT)
        log.info("This is a singletask model")
        for name in _ATTRIBUTES:
            if name in (args.ATTRIBUTES or _USUAL):
                for line in describe(potential, name):
                    log.info(line)
    return 0
