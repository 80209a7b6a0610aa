"""`dp report`: a page about a run or a scaling test."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lockstep.cli.options import HelpFormatter, whole_number
from lockstep.errors import UserError

if TYPE_CHECKING:
    from lockstep.report.folder import RunFolder


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "report",
        help="make a page about a run or a scaling test",
        description="Make one HTML page about the folder of a run or of a scaling test: learning curves, step budget, "
        "throughput, communication, predictions against labels (from dp test -d), systems, input. The page needs no "
        "network. With --serve a browser shows a training while it runs. Example: dp report . -o report.html",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("RUN", help="the folder in which dp train ran, or that dp scaling made")
    parser.add_argument("-o", "--output", default="report.html", help="the page")
    parser.add_argument("--serve", action="store_true", help="show the run live in a browser instead, until Ctrl-C")
    parser.add_argument("--port", type=whole_number, default=8265, help="of --serve; 0: any that is free")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="of --serve; any other address lets everyone who can reach it read the page",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page, or serve it."""
    from lockstep.report.folder import RunFolder

    folder = RunFolder(args.RUN)
    return _serve(folder, args.host, args.port) if args.serve else _write(folder, args.output)


def _write(folder: RunFolder, output: str) -> int:
    from lockstep.files import write_text
    from lockstep.report.collect import collect, is_empty
    from lockstep.report.page import make_page

    data = collect(folder)
    if is_empty(data):
        raise UserError(
            "there is nothing of a run in this folder: no lcurve.out, out.json, budget.jsonl or scaling.json",
            where=str(folder.root),
            remedy="name the folder in which dp train ran, or that dp scaling made",
        )
    page = make_page(data)
    write_text(output, page)
    print(f"Report of {folder.root} written to {output} ({len(page.encode()) / 1000:.0f} kB)", file=sys.stderr)
    return 0


def _serve(folder: RunFolder, host: str, port: int) -> int:
    from lockstep.report.serve import LOCAL, LiveServer

    with LiveServer(folder, host, port) as server:
        if host not in LOCAL:
            print(f"Everyone who can reach {host} can read this page.", file=sys.stderr)
        print(f"Showing {folder.root} at {server.url} until Ctrl-C", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("", file=sys.stderr)
    return 0
