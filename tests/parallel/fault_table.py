"""Writes docs/faults.md from the rows that the tests of faults have left: fault_table.py ROWS > docs/faults.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HEAD = """# Faults tried

Written by `make faults` from real trainings of a small model on three workers: do not edit by hand. Each fault was
provoked on the first, the second and the last worker, with a timeout of {timeout:g} seconds (`training.timeout`; the
default is 60). In every case the whole job ended with an exit code other than 0, at the latest {slowest:.0f} seconds
after the fault, the log named the worker and the step, no process was left, and the last checkpoint was loaded again.
Where the table says "finished", the run went on by itself to its end.

`kill`, `term`, `usr1` and `stop` are the signals SIGKILL, SIGTERM, SIGUSR1 and SIGSTOP, `twice` is SIGTERM and again;
after `term` and `usr1` while it trains, a run saves the step that it is in. `raise` is an error in Python; `loss`
and `gradient` are such that are not finite numbers; `read` is a frame that cannot be read; `slow` is a worker that does
nothing for twelve seconds where it may wait for a disk. Seconds are from the fault to the end of
the job; where workers do not meet, from its start.

"""


def main(path: str, timeout: float = 5.0) -> str:
    kept = [json.loads(line) for line in Path(path).read_text().splitlines()]
    rows = list({row["case"]: row for row in kept}.values())  # of a test that was run again, the last one
    lines = ["| launcher | fault | where | worker | seconds | exit code | last checkpoint | what the log says |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | --- | --- |")
    for row in sorted(rows, key=order):
        cells = [*split(row["case"]), f"{row['seconds']:.1f}", row["code"], row["checkpoint"], shortened(row["words"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    slowest = max(row["seconds"] for row in rows if row["checkpoint"].startswith(("step", "none")))
    return HEAD.format(timeout=timeout, slowest=slowest) + "\n".join(lines) + "\n"


def split(case: str) -> list[str]:
    launcher, fault, place, rank = re.fullmatch(r"(.+)-([^-]+)-([^-]+)-ranks?(\d*)", case).groups()  # type: ignore[union-attr]
    return [launcher, fault, place, rank or "all"]


def order(row: dict[str, str]) -> tuple[int, str]:
    """The matrix first, in the order in which it is written; what stands alone after it."""
    launcher, fault, place, rank = split(row["case"])
    kinds = ("kill", "term", "usr1", "twice", "stop", "raise", "loss", "gradient", "read", "slow")
    places = ("start", "step", "validating", "saving")
    place_number = places.index(place) if place in places else 9
    return (
        kinds.index(fault) if launcher in ("mpirun", "torchrun", "srun") and fault in kinds else 99,
        f"{place_number}{rank}",
    )


def shortened(words: str) -> str:
    """Without what differs from run to run: hosts, process numbers, folders."""
    words = re.sub(r" \([^()]*process \d+\)", "", words)
    words = re.sub(r"/tmp/\S*/", "", words)
    return words.replace("|", "\\|").strip()


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]))
