"""One rank and two, under mpirun and torchrun: how much faster, and what the exchange between ranks takes.

    python benchmarks/parallel.py                     about twenty minutes
    python benchmarks/parallel.py --ranks 1 2 4 --launchers mpirun --rounds 5
    python benchmarks/parallel.py --quick             does it work? figures mean nothing, and are not kept

The water example in float64, batch 1, one thread and one core a rank, all in alternation: with frames of its own for
each rank, by splines and by the exact nets (`spectral: off`); and with each frame shared by all ranks, of 192 atoms and
of the same repeated 2 x 2 x 2. Writes parallel.json and parallel.md beside this file, and the table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

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
QUICK = (40, 10, 10)
REPEATED_FRAMES = 8

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        length: steps, steps before the timing starts, steps of a display. With splines long enough that every rank has
            met nearly every frame before it is timed, and has its geometry at hand; with exact nets a step takes so
            long that it hardly matters.
        shared: whether all ranks share each frame.
        repeats: copies of a frame along each axis.
    """

    length: tuple[int, int, int]
    spectral: str = "auto"
    shared: bool = False
    repeats: int = 1


CASES = {
    "splines": Case((1000, 700, 50)),
    "exact": Case((90, 30, 15), spectral="off"),
    "192 atoms shared": Case((1000, 700, 50), shared=True),
    "1,536 atoms shared": Case((120, 60, 10), shared=True, repeats=2),
}


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
            for case, launcher, ranks in product(arguments.cases, arguments.launchers, arguments.ranks):
                record["runs"].append(measure(case, launcher, ranks, arguments.quick))
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
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run (default: 2)")
    parser.add_argument("--quick", action="store_true", help="very short runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


def measure(name: str, launcher: str, ranks: int, quick: bool) -> Record:
    """One training on so many ranks, each with a core."""
    case = CASES[name]
    steps, since, every = QUICK if quick else case.length
    config = inputs.water("float64", 1)
    config["model"]["descriptor"]["spectral"] = case.spectral
    config["training"]["ranks_per_frame"] = ranks if case.shared else 1
    words = [word.replace("{n}", str(ranks)) for word in LAUNCHERS[launcher]]
    command = [str(LOCKSTEP.bin / words[0]), *words[1:], *LOCKSTEP.call("train", "input.json")]
    with tempfile.TemporaryDirectory(prefix="parallel-") as place:
        folder = Path(place)
        if case.repeats > 1:
            config["training"]["training_data"]["systems"] = [str(repeated(folder / "large", case.repeats))]
        inputs.write(inputs.lasting(config, steps, every), folder)
        run = watch(pinned(command, *range(ranks)), folder, environment(), TIMEOUT)
        budget = read_budget(folder / "budget.jsonl", since)
    seconds, processor = zip(*run.intervals(since), strict=True)
    record = {
        "case": name,
        "launcher": launcher,
        "ranks": ranks,
        "samples": 1 if case.shared else ranks,
        "step": statistics.median(seconds),
        "processor_share": sum(processor) / sum(seconds) / ranks,
        "first_step": run.first_step,
        **budget,
    }
    who = f"{name:18s} {launcher:9s} {ranks} ranks"
    say(f"    {who}: {1000 * record['step']:.1f} ms a step, {exchange(record)} in the exchange")
    return record


def repeated(folder: Path, times: int) -> Path:
    """A system of some frames of the water example, `times` copies of each along every axis."""
    source = inputs.WATER / "data" / "train_0"
    shifts = np.stack(np.meshgrid(*[np.arange(times)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    arrays = {key: np.load(source / "set.000" / f"{key}.npy")[:REPEATED_FRAMES] for key in ("coord", "box", "force")}
    cells = arrays["box"].reshape(-1, 3, 3)
    coord = arrays["coord"].reshape(len(cells), 1, -1, 3) + (shifts @ cells)[:, :, None]
    energy = np.load(source / "set.000" / "energy.npy")[:REPEATED_FRAMES] * len(shifts)
    force = np.tile(arrays["force"], len(shifts))
    large = {"coord": coord.reshape(len(cells), -1), "box": times * arrays["box"], "force": force, "energy": energy}
    (folder / "set.000").mkdir(parents=True)
    for key, values in large.items():
        np.save(folder / "set.000" / f"{key}.npy", values)
    (folder / "type.raw").write_text((source / "type.raw").read_text() * len(shifts))
    (folder / "type_map.raw").write_text((source / "type_map.raw").read_text())
    return folder


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
    rows = [row(runs, *key) for key in dict.fromkeys((run["case"], run["launcher"], run["ranks"]) for run in runs)]
    facts = record["about"]
    return "\n\n".join(
        [
            table(header, rows),
            disturbance(runs),
            f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, load before {facts['load']}; "
            f"{facts['versions']}; `{facts['command']}`.",
        ]
    )


def row(runs: list[Record], case: str, launcher: str, ranks: int) -> tuple[str, ...]:
    """Medians of all rounds. The speed-up is in samples a second, against the fewest ranks of the same launcher."""
    chosen = [run for run in runs if (run["case"], run["launcher"]) == (case, launcher)]
    fewest = min(run["ranks"] for run in chosen)
    here = [run for run in chosen if run["ranks"] == ranks]
    rate = 1 / median(run["step"] for run in here)
    samples = rate * here[0]["samples"]
    speed_up = samples / median(run["samples"] / run["step"] for run in chosen if run["ranks"] == fewest)
    return (
        f"{case}, {launcher}, {ranks} rank{'s' * (ranks > 1)}",
        f"{rate:.1f}",
        f"{samples:.1f}",
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
