"""Lockstep and DeePMD-kit side by side: sets DeePMD-kit up in venvs of its own, measures, and writes the tables.

    python benchmarks/peers/run.py                          everything but accuracy: about 25 minutes
    python benchmarks/peers/run.py speed --rounds 5         a part of it: setup, speed, trained, many, report
    python benchmarks/peers/run.py threads --rounds 1       one thread and two, all programs: a quarter of an hour
    python benchmarks/peers/run.py descriptors              other descriptors than the example's, beside PyTorch
    python benchmarks/peers/run.py accuracy --seeds 3       three trainings with each program: under an hour
    python benchmarks/peers/run.py race --programs lockstep --race-cores 1    time to accuracy, piece by piece
    python benchmarks/peers/run.py --quick                  does it all work? figures mean nothing, and are not kept

Writes results.json and results.md beside this file, and the tables into docs/performance.md. A part that was not
asked for keeps its figures of an earlier time. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accuracy import measure_accuracy
from many import measure_many
from measure import ROOT, RunError, about_machine, cores_from, keep_off, say
from programs import PROGRAMS, set_up
from race import measure_minutes, measure_race
from speed import CASES, QUICK_CASES, THREAD_CASES, descriptor_cases, measure_speed, measure_trained
from tables import write_report

HERE = Path(__file__).resolve().parent
Keep = Callable[[dict[str, Any]], None]
USUAL = ["setup", "speed", "trained", "many", "report"]
MORE = ["threads", "descriptors", "accuracy", "race", "minutes"]


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    keep_off([arguments.core])
    if "setup" in arguments.parts:
        for key in arguments.programs:
            set_up(PROGRAMS[key])
    try:
        measure_parts(arguments)
    except RunError as error:
        sys.exit(str(error))
    if "report" in arguments.parts or arguments.quick:
        write_report(arguments.output, None if arguments.quick else ROOT / "docs" / "performance.md")
        say(f"tables in {arguments.output / 'results.md'}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*USUAL, *MORE, []], help=f"default: all but {', '.join(MORE)}")
    parser.add_argument("--accuracy", action="store_true", help="add the accuracy part to the others")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each case is run, long ones once less (default: 3)"
    )
    parser.add_argument("--core", type=int, default=0, help="core that all programs run on (default: 0; -1: any)")
    parser.add_argument("--systems", type=int, default=50_000, help="of the part many (default: 50000)")
    parser.add_argument("--peer-systems", type=int, default=500, help="the same for DeePMD-kit; 0: not run")
    parser.add_argument("--steps", type=int, default=3000, help="of accuracy and race (default: 3000)")
    parser.add_argument("--seeds", type=int, default=3, help="of the part accuracy (default: 3)")
    parser.add_argument("--race-cores", type=int, nargs="+", default=[1, 2], help="of the part race (default: 1 2)")
    parser.add_argument("--minutes", type=float, default=10, help="of the part minutes (default: 10)")
    parser.add_argument(
        "--only", default="", help="of the parts descriptors and race: those whose name begins so; others are kept"
    )
    parser.add_argument("--brief", action="store_true", help="of the part descriptors: 15 steps, none of them warm")
    parser.add_argument("--quick", action="store_true", help="very short runs, kept in a temporary folder")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of results.json and results.md")
    arguments = parser.parse_args()
    arguments.parts = [*(arguments.parts or USUAL), *(["accuracy"] if arguments.accuracy else [])]
    if arguments.quick:
        arguments.rounds, arguments.systems, arguments.peer_systems, arguments.steps, arguments.seeds = (
            1,
            300,
            20,
            20,
            1,
        )
        arguments.output = Path(tempfile.mkdtemp(prefix="peers-quick-"))
    return arguments


def measure_parts(arguments: argparse.Namespace) -> None:
    """Measure what was asked for, keeping each part as soon as it is there."""
    keys, core, quick = arguments.programs, arguments.core, arguments.quick
    cases = QUICK_CASES if quick else CASES
    accuracy_keys = [key for key in keys if key != "pytorch"] if len(keys) == len(PROGRAMS) else keys
    parts: dict[str, Callable[[Keep], dict[str, Any]]] = {
        "speed": lambda kept: measure_speed(keys, cases, arguments.rounds, core, quick, kept),
        "descriptors": lambda kept: measure_speed(
            # TensorFlow's inputs of descriptors with a type embedding are different ones.
            [key for key in keys if key != "tensorflow"],
            tuple(case for case in descriptor_cases(arguments.brief) if case.name.startswith(arguments.only)),
            arguments.rounds,
            core,
            quick or arguments.brief,
            kept,
            results_in(arguments.output).get("descriptors", {}).get("cases", {}),
        ),
        "threads": lambda kept: measure_speed(keys, THREAD_CASES, arguments.rounds, core, quick, kept),
        "trained": lambda _: measure_trained(core, quick),
        "many": lambda _: measure_many(arguments.systems, arguments.peer_systems, keys, core, quick),
        "accuracy": lambda _: measure_accuracy(
            accuracy_keys, arguments.steps, arguments.seeds, results_in(arguments.output).get("accuracy", {})
        ),
        "race": lambda kept: measure_race(
            keys,
            [cores_from(core, count) for count in arguments.race_cores],
            arguments.steps,
            arguments.only,
            results_in(arguments.output).get("race", {}),
            kept,
        ),
        "minutes": lambda kept: measure_minutes(
            keys,
            cores_from(core, 2),
            arguments.minutes,
            # A quick run keeps its results elsewhere, and needs the race all the same.
            results_in(HERE)["race"],
            results_in(arguments.output).get("minutes", {}),
            kept,
        ),
    }
    for name, measure in parts.items():
        if name in arguments.parts:
            say(f"part {name}")
            kept = keeper(arguments.output, name, keys, core)
            kept(measure(kept))


def keeper(output: Path, name: str, keys: list[str], core: int) -> Keep:
    """What puts a part into results.json, with when and how it was measured, leaving the others as they are."""
    began = time.perf_counter()
    about = about_machine() | {"command": " ".join(["python", "benchmarks/peers/run.py", *sys.argv[1:]])}
    about["versions"] = {key: PROGRAMS[key].versions() for key in keys}
    about["commands"] = {key: PROGRAMS[key].shown(core) for key in keys}

    def keep(figures: dict[str, Any]) -> None:
        part = {"about": about, "seconds": time.perf_counter() - began, **figures}
        output.mkdir(parents=True, exist_ok=True)
        (output / "results.json").write_text(json.dumps(results_in(output) | {name: part}, indent=1) + "\n")

    return keep


def results_in(output: Path) -> dict[str, Any]:
    """All parts measured so far."""
    path = output / "results.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


if __name__ == "__main__":
    main()
