"""`dp scaling`: how much faster is a training on more workers?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lockstep.cli.options import HelpFormatter, whole_number
from lockstep.errors import UserError


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "scaling",
        help="measure a training on several numbers of workers",
        description="Run a short part of a training on several numbers of workers, one after the other, each in a "
        "folder of its own; print how fast it is, where the time goes, and what more workers would give. Writes "
        "scaling.md, scaling.json and scaling.png. Example: dp scaling input.json -n 1,2,4",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("INPUT", help="the input file, JSON or YAML")
    parser.add_argument("-n", "--workers", default="1,2,4", help="the numbers of workers, separated by commas")
    parser.add_argument(
        "--launcher",
        default="torchrun",
        help="torchrun, mpirun, or a command with {n} for the number of workers, such as 'srun -n {n}'",
    )
    parser.add_argument(
        "--strong",
        action="store_true",
        help="keep the global batch: divide acc_freq, then share frames; otherwise keep each worker's batch",
    )
    parser.add_argument(
        "--steps", type=whole_number, default=200, help="measured steps of each run; 3/10 as many come before them"
    )
    parser.add_argument("--threads", type=whole_number, default=1, help="threads of each worker; 0: share the cores")
    parser.add_argument("--predict", default="8,64,512", help="numbers of workers to predict, separated by commas")
    parser.add_argument("-o", "--output", default="scaling", metavar="FOLDER", help="a new folder for all files")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, and say where the files are."""
    from lockstep.parallel import launchers
    from lockstep.scaling.campaign import Campaign, parse_counts, report_failure
    from lockstep.scaling.launch import RunFailedError
    from lockstep.scaling.tables import result_markdown

    if launchers.detect(os.environ).size > 1:
        raise UserError("dp scaling starts the workers itself", remedy="run it without torchrun, mpirun or srun")
    if not args.steps:
        raise UserError("nothing would be measured", where="--steps", value=args.steps, remedy="200 is a good number")
    campaign = Campaign(
        input=args.INPUT,
        workers=parse_counts(args.workers, "--workers"),
        launcher=args.launcher,
        strong=args.strong,
        steps=args.steps,
        threads=args.threads,
        output=args.output,
        predict=parse_counts(args.predict, "--predict"),
    )
    try:
        result = campaign.run()
    except RunFailedError as error:
        report_failure(error)
        return 1
    print(result_markdown(result))
    files = ["scaling.md", "scaling.json", *_picture(result, args.output)]
    print(
        f"Written to {args.output}: {', '.join(files)}. dp report {args.output} makes a page of them", file=sys.stderr
    )
    return 0


def _picture(result: dict, folder: str) -> list[str]:
    """A test whose picture cannot be drawn is still a test."""
    from lockstep.scaling.picture import plot_scaling

    try:
        plot_scaling(result, str(Path(folder) / "scaling.png"))
    except UserError as error:
        print(f"No picture: {error}", file=sys.stderr)
        return []
    return ["scaling.png"]
