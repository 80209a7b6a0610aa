"""`dp train`: train a model, alone or as one of many workers."""

from __future__ import annotations

import argparse
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lockstep.cli.options import HelpFormatter, add_log_options, tell
from lockstep.errors import UserError

if TYPE_CHECKING:
    from lockstep.config import Input
    from lockstep.observe.log import Logging
    from lockstep.parallel.context import WorkerContext

log = logging.getLogger(__name__)


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "train",
        help="train a model",
        description="Train a model as an input file says. Under torchrun, mpirun, horovodrun or srun the same command "
        "trains on all workers together; there is nothing to change in the input file.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("INPUT", help="the input file, JSON or YAML")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("-r", "--restart", metavar="CHECKPOINT", help="go on from a checkpoint, as if never stopped")
    start.add_argument("-i", "--init-model", metavar="CHECKPOINT", help="begin with the weights of a checkpoint")
    start.add_argument("-f", "--init-frz-model", metavar="MODEL", help="begin with the weights of a .dp model")
    parser.add_argument("-o", "--output", default="out.json", help="where the input with all defaults is written")
    parser.add_argument("--skip-neighbor-stat", action="store_true", help="do not count neighbours in all frames")
    parser.add_argument("--profile", action="store_true", help="write a communication profile on every rank")
    parser.add_argument("--timeline", metavar="FILE", help="write what every rank does when, for Perfetto")
    add_log_options(parser)
    parser.add_argument(
        "-m",
        "--mpi-log",
        default="master",
        choices=["master", "collect", "workers"],
        help="who logs among many workers: rank 0 alone; rank 0 for all of them; each for itself",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Join the other workers, if there are any, and train."""
    from lockstep.config import load_input
    from lockstep.observe.log import configure_logging, parse_level
    from lockstep.parallel import launchers
    from lockstep.parallel.opening import timeout_of

    context = launchers.detect(os.environ)
    path = Path(args.log_path) if args.log_path else None
    records = configure_logging(parse_level(args.log_level), path, args.mpi_log, context)
    try:
        # Before anything heavy is loaded, so that a typing mistake costs no waiting; and once: it may be a pipe.
        config = load_input(args.INPUT)
        timeout = timeout_of(os.environ)
    except UserError as error:
        _end_together(args.verb, context, error)
    try:
        return _train(args, config, timeout, context, records)
    except UserError as error:
        records.tell_file(str(error))
        raise
    finally:
        records.close()


def _end_together(verb: str, context: WorkerContext, mistake: UserError) -> NoReturn:
    """Meet the other workers to end with them, so that none waits for this one and the user is told once."""
    from lockstep.parallel.devices import device_type, visible_gpus
    from lockstep.parallel.opening import open_group

    if context.size > 1:
        device = device_type(os.environ, len(visible_gpus()))
        open_group(context, device, mistake=mistake, tell=partial(tell, verb))
    raise mistake


def _train(args: argparse.Namespace, config: Input, timeout: float, context: WorkerContext, records: Logging) -> int:
    from lockstep.parallel.devices import device_type, place_group, visible_gpus
    from lockstep.parallel.opening import open_group
    from lockstep.parallel.summary import training_summary
    from lockstep.parallel.watch.faults import guarded
    from lockstep.training.session import train
    from lockstep.training.starting import Options

    device = device_type(os.environ, len(visible_gpus()))
    group = open_group(context, device, timeout, tell=partial(tell, args.verb))
    records.join(group)
    with guarded(group):
        placement = place_group(group, device)
        placement.apply()
        for line in training_summary(group.context, placement, os.environ):
            log.info(line)
        options = Options(
            args.restart,
            args.init_model,
            args.init_frz_model,
            args.skip_neighbor_stat,
            args.output,
            args.profile,
            args.timeline,
        )
        train(config, Path(args.INPUT).parent, options, group, placement)
        group.close()
    return 0
