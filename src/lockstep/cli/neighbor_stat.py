"""`dp neighbor-stat`: how many neighbours atoms have, to choose `sel` by."""

from __future__ import annotations

import argparse
import logging

from lockstep.cli.options import HelpFormatter, add_log_options, checked_system, logged, positive_number

log = logging.getLogger(__name__)


def add_parser(verbs: argparse._SubParsersAction) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "neighbor-stat",
        help="count the neighbours in systems",
        description="Find the shortest distance between atoms, and the most neighbours of each type that any atom has "
        "within a cutoff: what `sel` must have room for. Example: dp neighbor-stat -s data -r 6.0 -t O H",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("-s", "--system", default=".", help="a system, or a folder that is searched for systems")
    parser.add_argument("-r", "--rcut", type=positive_number, required=True, help="the cutoff radius in Angstrom")
    parser.add_argument("-t", "--type-map", nargs="+", metavar="TYPE", help="the types; those of the data if not given")
    parser.add_argument(
        "--mixed-type", "--one-type", action="store_true", help="count neighbours of all types together"
    )
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count, and log the result."""
    with logged(args):
        from lockstep.analysis.neighbours import count_neighbours, types_of_data
        from lockstep.data import DataSet

        system, types = checked_system(args.system), args.type_map
        if types is None:
            types = types_of_data(system)
            log.info("type_map: %s", types)
        found = count_neighbours(DataSet(system, types), args.rcut, args.mixed_type)
        for name in found.lonely:
            log.warning("%s has frames in which no two atoms are within %g Angstrom", name, args.rcut)
        log.info("min_nbor_dist: %f", found.min_distance)
        log.info("max_nbor_size: %s", found.max_count)
    return 0
