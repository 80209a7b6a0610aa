"""`dp test`: the errors of a model on labelled data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.options import HelpFormatter, add_log_options, checked_system, logged, whole_number
from lockstep.errors import InputError, UserError

if TYPE_CHECKING:
    from lockstep.data import DataSet
    from lockstep.model import Potential


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "test",
        help="test a model on labelled data",
        description="Compare a model's energies, forces and virials with the labels of systems. Example: "
        "dp test -m model.dp -s data -n 30 -d detail",
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "-m", "--model", default="frozen_model", help="a .dp model, a checkpoint, its prefix, or the folder of a run"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("-s", "--system", default=".", help="a system, or a folder that is searched for systems")
    source.add_argument("-f", "--datafile", metavar="FILE", help="a text file with the path of one system in each line")
    source.add_argument("--train-data", metavar="INPUT", help="an input file whose training data are the systems")
    source.add_argument("--valid-data", metavar="INPUT", help="an input file whose validation data are the systems")
    parser.add_argument(
        "-n", "--numb-test", type=whole_number, default=0, help="at most so many frames of each system; 0: all"
    )
    parser.add_argument("-r", "--rand-seed", type=int, help="the seed of --shuffle-test")
    parser.add_argument("--shuffle-test", action="store_true", help="take frames at random, not the first ones")
    parser.add_argument(
        "-d", "--detail-file", metavar="PREFIX", help="write label and prediction of every number to PREFIX.e.out, ..."
    )
    parser.add_argument("-a", "--atomic", action="store_true", help="compare the energies of atoms too (atom_ener.npy)")
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Test, and log the errors."""
    with logged(args):
        from lockstep.analysis.evaluation import place_alone
        from lockstep.analysis.testing import Choice, measure_errors
        from lockstep.interop.loading import load_potential

        potential = load_potential(args.model).to(place_alone())
        dataset = _data(args, potential)
        choice = Choice(args.numb_test, args.shuffle_test, args.rand_seed)
        measure_errors(potential, dataset, choice, args.detail_file, args.atomic)
    return 0


def _data(args: argparse.Namespace, potential: Potential) -> DataSet:
    from lockstep.analysis.evaluation import open_data

    required = ["atom_ener"] if args.atomic else []
    if args.train_data or args.valid_data:
        systems, patterns = _of_input(args.train_data or args.valid_data, training=bool(args.train_data))
        return open_data(systems, potential, required, patterns)
    if args.datafile:
        return open_data(_listed(Path(args.datafile)), potential, required)
    return open_data(checked_system(args.system), potential, required)


def _of_input(path: str, training: bool) -> tuple[list[str], list[str] | None]:
    """The systems of an input file, whose relative paths here start from the folder of that file."""
    from lockstep.config import load_input

    section = load_input(path).training
    data = section.training_data if training else section.validation_data
    if data is None:
        raise InputError("the input file has none", where="training.validation_data", remedy="use --train-data or -s")
    given = [data.systems] if isinstance(data.systems, str) else data.systems
    systems = [str(Path(path).parent / system) for system in given]
    return systems, list(data.rglob_patterns) if data.rglob_patterns else None


def _listed(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read as a list of systems: {error}", where="--datafile", value=str(path)) from error
    systems = [line.strip() for line in lines if line.strip()]
    if not systems:
        raise UserError(
            "the file lists no systems", where="--datafile", value=str(path), remedy="write one path a line"
        )
    return systems
