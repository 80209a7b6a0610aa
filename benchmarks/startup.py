"""How long `dp train` takes to its first step, how fast it goes on, and how much memory it needs.

    python benchmarks/startup.py                              the water example, median of three runs
    python benchmarks/startup.py examples/copper/input.json --steps 500 --threads 1 --repeat 5

Each run is a new process in an empty folder, from the command to its end. The first step is taken from the learning
curve, whose first row is written after it; the steps after it give the speed, the display's own work included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """What one training took: seconds to the end of the first step, steps a second after it, memory in MB."""

    first_step: float
    speed: float
    memory: float


def main() -> None:
    arguments = parse_arguments()
    config = shortened(arguments.input, arguments.steps)
    runs = []
    for number in range(arguments.repeat):
        with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
            runs.append(measure(Path(folder), config, arguments))
        print_row(f"run {number + 1}", runs[-1], header=number == 0)
    if len(runs) > 1:
        print_row("median", Run(*(statistics.median(values) for values in zip(*map(astuple, runs), strict=True))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="?", type=Path, default=ROOT / "examples" / "water" / "input.json")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run (default: 200)")
    parser.add_argument("--threads", type=int, help="threads of each run (default: as many as cores)")
    parser.add_argument("--repeat", type=int, default=3, help="number of runs (default: 3)")
    arguments = parser.parse_args()
    if arguments.steps < 2 or arguments.repeat < 1:
        parser.error("at least two steps and one run are needed")
    return arguments


def shortened(path: Path, steps: int) -> dict[str, Any]:
    """The input with few steps, one row of the learning curve at either end, and data paths that hold anywhere."""
    config: dict[str, Any] = json.loads(path.read_text())
    training = config["training"]
    training.pop("numb_epoch", None)
    training.update(numb_steps=steps, disp_freq=steps, save_freq=steps, disp_file="lcurve.out")
    for section in ("training_data", "validation_data"):
        systems = training.get(section, {}).get("systems", [])
        for number, system in enumerate(systems):
            systems[number] = str(path.resolve().parent / system)
    return config


def measure(folder: Path, config: dict[str, Any], arguments: argparse.Namespace) -> Run:
    """Train in `folder`, watching for the first and the last row of the learning curve."""
    (folder / "input.json").write_text(json.dumps(config))
    environment = dict(os.environ)
    if arguments.threads:
        environment["OMP_NUM_THREADS"] = str(arguments.threads)
    command = [str(Path(sys.executable).with_name("lockstep")), "train", "input.json"]
    curve = folder / "lcurve.out"
    with (folder / "log").open("w") as log:
        began = time.perf_counter()
        job = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        first = wait_for_rows(1, curve, job.pid) - began
        last = wait_for_rows(2, curve, job.pid) - began
        _, status, usage = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    if job.returncode != 0:
        sys.exit((folder / "log").read_text())
    return Run(first, (arguments.steps - 1) / (last - first), usage.ru_maxrss / 1024)


def wait_for_rows(count: int, curve: Path, pid: int) -> float:
    """The moment when the learning curve has so many rows, or when the process has ended."""
    # WNOWAIT leaves the process to be collected later, together with what it has used.
    while rows(curve) < count and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.005)
    return time.perf_counter()


def rows(curve: Path) -> int:
    """Rows of the learning curve so far, without comments."""
    try:
        return sum(not line.startswith("#") for line in curve.read_text().splitlines())
    except FileNotFoundError:
        return 0


def print_row(name: str, run: Run, header: bool = False) -> None:
    if header:
        titles = ("", "first step (s)", "steps/s", "peak memory (MB)")
        print("".join(f"{title:>18s}" for title in titles))
    print(f"{name:>18s}" + "".join(f"{getattr(run, field.name):18.2f}" for field in fields(run)), flush=True)


if __name__ == "__main__":
    main()
