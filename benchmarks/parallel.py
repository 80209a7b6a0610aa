"""One rank and two, under mpirun and torchrun: how much faster, and what the exchange between ranks takes.

    python benchmarks/parallel.py                     about twelve minutes
    python benchmarks/parallel.py --ranks 1 2 4 --launchers mpirun --rounds 5
    python benchmarks/parallel.py --quick             does it work? figures mean nothing, and are not kept

The water example in float64, batch 1 on each rank, one thread and one core a rank, all in alternation; with splines
for the embedding nets, and with the exact nets (`spectral: off`). Writes
parallel.json and parallel.md beside this file, and the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import inputs
from measure import ROOT, RunError, about_machine, environment, keep_off, pinned, say, watch
from programs import LOCKSTEP
from tables import disturbance, replace_block, table

HERE = Path(__file__).resolve().parent
LAUNCHERS = {
    "mpirun": ("mpirun", "-np", "{n}"),
    "torchrun": ("torchrun", "--standalone", "--nproc_per_node={n}", "--no-python"),
}
TIMEOUT = 900.0
NETS = {"splines": (1000, 700, 50), "exact": (90, 30, 15)}
"""Steps, steps before the timing starts, steps of a display. With splines long enough that every rank has met nearly
every frame before it is timed, and has its geometry at hand; with exact nets a step takes so long that it hardly
matters."""
QUICK = (40, 10, 10)

Record = dict[str, Any]


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    keep_off(range(max(arguments.ranks)))
    record: Record = {"about": about_machine(), "runs": []}
    record["about"] |= {"command": " ".join(["python", "benchmarks/parallel.py", *sys.argv[1:]])}
    record["about"] |= {"versions": LOCKSTEP.versions()}
    try:
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            for nets, launcher, ranks in product(arguments.nets, arguments.launchers, arguments.ranks):
                record["runs"].append(measure(nets, launcher, ranks, QUICK if arguments.quick else NETS[nets]))
    except RunError as error:
        sys.exit(str(error))
    text = report(record)
    print(text)
    if not arguments.quick:
        (HERE / "parallel.json").write_text(json.dumps(record, indent=1) + "\n")
        (HERE / "parallel.md").write_text(f"# One rank and more\n\n{text}\n")
        replace_block(ROOT / "docs" / "performance.md", "parallel", text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--launchers", nargs="+", choices=list(LAUNCHERS), default=list(LAUNCHERS))
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run (default: 2)")
    parser.add_argument("--quick", action="store_true", help="very short runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


def measure(nets: str, launcher: str, ranks: int, length: tuple[int, int, int]) -> Record:
    """One training on so many ranks, each with a core."""
    steps, since, every = length
    config = inputs.water("float64", 1)
    config["model"]["descriptor"]["spectral"] = "auto" if nets == "splines" else "off"
    words = [word.replace("{n}", str(ranks)) for word in LAUNCHERS[launcher]]
    command = [str(LOCKSTEP.bin / words[0]), *words[1:], *LOCKSTEP.call("train", "input.json")]
    with tempfile.TemporaryDirectory(prefix="parallel-") as name:
        folder = Path(name)
        inputs.write(inputs.lasting(config, steps, every), folder)
        run = watch(pinned(command, *range(ranks)), folder, environment(), TIMEOUT)
        budget = read_budget(folder / "budget.jsonl", since)
    seconds, processor = zip(*run.intervals(since), strict=True)
    record = {
        "nets": nets,
        "launcher": launcher,
        "ranks": ranks,
        "step": statistics.median(seconds),
        "processor_share": sum(processor) / sum(seconds) / ranks,
        "first_step": run.first_step,
        **budget,
    }
    who = f"{nets:8s} {launcher:9s} {ranks} ranks"
    say(f"    {who}: {1000 * record['step']:.1f} ms a step, {exchange(record)} in the exchange")
    return record


def read_budget(path: Path, since: int) -> Record:
    """Shares of the phases that the run itself counted, from step `since` on; nothing where it wrote none."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shares = [line["budget"] for line in lines if line["step"] > since]
    return {"budget": {phase: statistics.median(share[phase] for share in shares) for phase in shares[0]}}


def exchange(record: Record, phase: str = "communication") -> str:
    budget = record.get("budget")
    return f"{100 * budget[phase]:.1f} %" if budget else "-"


def report(record: Record) -> str:
    runs: list[Record] = record["runs"]
    header = (
        "",
        "steps/s",
        "samples/s",
        "speed-up",
        "efficiency",
        "communication",
        "waiting for others",
        "first step, s",
    )
    rows = [row(runs, *key) for key in dict.fromkeys((run["nets"], run["launcher"], run["ranks"]) for run in runs)]
    facts = record["about"]
    return "\n\n".join(
        [
            table(header, rows),
            disturbance(runs),
            f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, load before {facts['load']}; "
            f"{facts['versions']}; `{facts['command']}`.",
        ]
    )


def row(runs: list[Record], nets: str, launcher: str, ranks: int) -> tuple[str, ...]:
    """Medians of all rounds. The speed-up is in samples a second, against the fewest ranks of the same launcher."""
    chosen = [run for run in runs if (run["nets"], run["launcher"]) == (nets, launcher)]
    fewest = min(run["ranks"] for run in chosen)
    here = [run for run in chosen if run["ranks"] == ranks]
    rate = 1 / median(run["step"] for run in here)
    alone = 1 / median(run["step"] for run in chosen if run["ranks"] == fewest)
    speed_up = rate * ranks / (alone * fewest)
    return (
        f"{nets}, {launcher}, {ranks} rank{'s' * (ranks > 1)}",
        f"{rate:.1f}",
        f"{rate * ranks:.1f}",
        f"{speed_up:.2f}",
        f"{100 * speed_up * fewest / ranks:.0f} %",
        share(here, "communication"),
        share(here, "wait"),
        f"{median(run['first_step'] for run in here):.1f}",
    )


def share(runs: list[Record], phase: str) -> str:
    known = [run["budget"][phase] for run in runs if "budget" in run]
    return f"{100 * median(known):.1f} %" if known else "-"


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
