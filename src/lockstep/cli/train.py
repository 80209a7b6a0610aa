"""`dp train`: train a model, alone or as one of many workers."""

from __future__ import annotations

import argparse
from functools import partial

from lockstep.cli.options import HelpFormatter, add_log_options, count_or_auto, tell


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
    start.add_argument(
        "-r",
        "--restart",
        metavar="CHECKPOINT",
        help="go on from a checkpoint, as if never stopped; auto: from this run's own newest, if there is one",
    )
    start.add_argument(
        "-i",
        "--init-model",
        metavar="CHECKPOINT",
        help="begin with the weights of a checkpoint, also of a .pt of DeePMD-kit's PyTorch backend",
    )
    start.add_argument("-f", "--init-frz-model", metavar="MODEL", help="begin with the weights of a .dp or .pth model")
    start.add_argument("-t", "--finetune", metavar="MODEL", help="fine-tune a model of DeePMD-kit's to these data")
    parser.add_argument("--model-branch", metavar="NAME", help="which model to fine-tune, where there are several")
    parser.add_argument("-o", "--output", default="out.json", help="where the input with all defaults is written")
    parser.add_argument("--skip-neighbor-stat", action="store_true", help="do not count neighbours in all frames")
    parser.add_argument("--profile", action="store_true", help="write a communication profile on every rank")
    parser.add_argument("--timeline", metavar="FILE", help="write what every rank does when, for Perfetto")
    parser.add_argument(
        "--ranks-per-frame",
        type=count_or_auto,
        metavar="S",
        help="let S workers share the atoms of each frame, instead of what the input file says; auto lets the size of "
        "the frames decide",
    )
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
    from lockstep.training.options import Options
    from lockstep.training.script import LogOptions, run_training

    options = Options(
        restart=args.restart,
        init_model=args.init_model,
        init_frz_model=args.init_frz_model,
        skip_neighbor_stat=args.skip_neighbor_stat,
        output=args.output,
        profile=args.profile,
        timeline=args.timeline,
        ranks_per_frame=args.ranks_per_frame,
        finetune=args.finetune,
        head=args.model_branch,
    )
    run_training(
        args.INPUT, None, options, LogOptions(args.log_path, args.log_level, args.mpi_log), partial(tell, args.verb)
    )
    return 0
