"""`dp doc-train-input`: the reference of the input file."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Register the verb."""
    text = "print every key of the input file with its type, default and meaning"
    parser = subparsers.add_parser("doc-train-input", help=text, description=text.capitalize() + ".")
    parser.add_argument(
        "--out-type",
        choices=("md", "json", "json_schema"),
        default="md",
        help="md: Markdown to read (default); json: the same for programs; json_schema: a schema for editors",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the reference in the form asked for."""
    from lockstep.config import reference

    writers = {
        "md": reference.reference_markdown,
        "json": reference.reference_json,
        "json_schema": reference.reference_schema,
    }
    print(writers[args.out_type]())
    return 0
