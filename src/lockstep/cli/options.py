"""What several verbs share: the options of logging, and the log itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import UserError

LEVELS = ("DEBUG", "3", "INFO", "2", "WARNING", "1", "ERROR", "0")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults that say something: not that a switch is off, nor that there is nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is None or action.default is False
        return action.help if silent else super()._get_help_string(action)


def tell(verb: str, error: UserError) -> None:
    """Show a mistake to the user, in one place and once."""
    if not error.told:
        print(f"dp {verb}: error: {error}", file=sys.stderr)
        error.told = True


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """`-v` and `-l`, as every verb of DeePMD-kit has them."""
    parser.add_argument(
        "-v",
        "--log-level",
        default="INFO",
        choices=LEVELS,
        help="how much to log, by name or number; DEBUG also shows where errors come from",
    )
    parser.add_argument("-l", "--log-path", metavar="FILE", help="write the log to this file too")


@contextmanager
def logged(args: argparse.Namespace) -> Iterator[None]:
    """The log of a verb that runs in one process, even inside an allocation for many."""
    from lockstep.observe.log import configure_logging, parse_level
    from lockstep.parallel.engines.solo import SoloGroup
    from lockstep.parallel.launchers import alone

    context = alone.detect({})
    path = Path(args.log_path) if args.log_path else None
    records = configure_logging(parse_level(args.log_level), path, "master", context, SoloGroup(context))
    try:
        yield
    finally:
        records.close()


def whole_number(text: str) -> int:
    """For argparse: 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, not {text!r}")
    return int(text)


def positive_count(text: str) -> int:
    """For argparse: 1 or more."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, not {text!r}")
    return int(text)


def count_or_auto(text: str) -> int | str:
    """For argparse: 1 or more, or the word `auto`."""
    return text if text == "auto" else positive_count(text)


def positive_number(text: str) -> float:
    """For argparse: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return number


def checked_system(path: str) -> str:
    """What `-s` names, if it is there; within an HDF5 file a group follows after `#`."""
    if not Path(path.partition("#")[0]).exists():
        raise UserError("there is no such folder or HDF5 file", where="--system", value=path)
    return path
