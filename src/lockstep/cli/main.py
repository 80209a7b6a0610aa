"""The entry point of `dp` and `lockstep`."""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import sys
from collections.abc import Sequence

from lockstep.cli import VERBS, handover
from lockstep.cli.options import tell
from lockstep.errors import ForeignModelError, UserError
from lockstep.version import __version__

_HINT = ": --restart auto goes on from the last checkpoint, if there is one (SIGTERM instead of Ctrl-C saves first)"

EXIT_USER = 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, each verb's part made by its own module."""
    parser = argparse.ArgumentParser(
        prog="dp",
        description="Lockstep trains Deep Potential models from DeePMD-kit input files, alone or on many workers.",
        epilog=f"Handed over to DeePMD-kit where it is installed: the verbs {', '.join(handover.VERBS)}, and every "
        "verb with one of its other backends, such as dp --tf train. The same program answers to `lockstep`.",
    )
    parser.add_argument("--version", action="version", version=f"Lockstep v{__version__}")
    backend = parser.add_mutually_exclusive_group()
    backend.add_argument("-b", "--backend", help="pytorch, which is this program; any other is DeePMD-kit's")
    for name in dict.fromkeys(handover.BACKENDS.values()):
        spellings = [f"--{short}" for short, long in handover.BACKENDS.items() if long == name]
        backend.add_argument(
            *spellings, dest="backend", action="store_const", const=name, help=f"the same as --backend {name}"
        )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; user mistakes end with one screen and exit code 2."""
    # Modules make objects by the hundred thousand that stay: looking for garbage among them is a fifth of start-up.
    gc.set_threshold(100_000, 50, 100)
    # What is left when the process ends needs no search for garbage either, which would take most of a second.
    atexit.register(gc.freeze)
    _fill_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        handover.hand_over_if_foreign(words)
    except UserError as error:
        print(f"dp: error: {error}", file=sys.stderr)
        return EXIT_USER
    args = build_parser().parse_args(words)
    try:
        return int(args.run(args) or 0)
    except ForeignModelError as error:
        return _evaluated_there(error, args, words)
    except UserError as error:
        if logging.getLogger("lockstep").isEnabledFor(logging.DEBUG):
            logging.getLogger("lockstep").debug("where the error came from:", exc_info=error)
        tell(args.verb, error)
        return EXIT_USER
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print(f"dp {args.verb}: interrupted{_HINT if args.verb == 'train' else ''}", file=sys.stderr)
        return 130


def _fill_closed_streams() -> None:
    """Let closed standard streams (`2>&-`) lead nowhere: else the next files to be opened would take their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _evaluated_there(error: ForeignModelError, args: argparse.Namespace, words: list[str]) -> int:
    """A verb that this program has, for a model that it has not."""
    try:
        return handover.evaluate_there(error, args, words)
    except UserError as problem:
        tell(args.verb, problem)
        return EXIT_USER


if __name__ == "__main__":
    sys.exit(main())
