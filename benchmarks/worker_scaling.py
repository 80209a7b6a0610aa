"""What learning rate and optimizer should do when workers are added: 1 to 16 of them, at equal samples.

    python benchmarks/worker_scaling.py                          an hour or so on a free core
    python benchmarks/worker_scaling.py --optimizers SOAP        a part of it
    python benchmarks/worker_scaling.py --quick                  does it work? figures mean nothing, and are not kept

The copper example, each setting with several seeds. One worker accumulates the micro-batches of as many workers in each
step, which is the same training; steps and intervals are divided by them, so that every run sees as many samples. Each
run is kept in worker_scaling.json beside this file as soon as it is done, and not done again. Writes the table into
docs/parallel.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from measure import about_machine
from tables import replace_block, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "examples" / "copper"
VALIDATION_FRAMES = 32
RULES = {"Adam": ("linear", "sqrt", "none"), "SOAP": ("auto", "none")}
FACTORS = {"linear": float, "sqrt": math.sqrt, "none": lambda _: 1.0, "auto": lambda _: 1.0}
SETTING = ("samples", "optimizer", "workers", "rule")
RESULTS = HERE / "worker_scaling.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--optimizers", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=2000, help="frames that every run sees")
    parser.add_argument("--rules", nargs="+", default=list(FACTORS), choices=list(FACTORS), help="default: all")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.samples, arguments.workers = [1], 40, [1, 4]
    runs: list[dict[str, Any]] = [] if arguments.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    for job in jobs_of(arguments):
        if not any(job.items() <= run.items() for run in runs):
            runs.append(measure(job))
            if not arguments.quick:
                RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
    text = report(runs)
    print(text)
    if not arguments.quick:
        replace_block(ROOT / "docs" / "parallel.md", "worker_scaling", text)


def jobs_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"optimizer": optimizer, "workers": workers, "rule": rule, "seed": seed, "samples": arguments.samples}
        for seed in arguments.seeds
        for optimizer in arguments.optimizers
        for workers in arguments.workers
        for rule in (RULES[optimizer] if workers > 1 else ("none",))
        if rule in arguments.rules or workers == 1
    ]


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train once; the errors on all validation frames in the end."""
    with tempfile.TemporaryDirectory() as folder:
        write_input(Path(folder), job)
        command = [str(BIN / "dp"), "train", "input.json"]
        began = time.time()
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{job} failed:\n{done.stderr}")
        lines = (Path(folder) / "lcurve.out").read_text().splitlines()
    last = dict(zip(lines[0].removeprefix("#").split(), lines[-1].split(), strict=True))
    errors = {"force": float(last["rmse_f_val"]), "energy": float(last["rmse_e_val"])}
    result = {**job, "steps": int(last["step"]), **errors, "seconds": time.time() - began, "about": about_machine()}
    print(result, file=sys.stderr)
    return result


def write_input(folder: Path, job: dict[str, Any]) -> None:
    config = json.loads((EXAMPLE / "input.json").read_text())
    config["model"]["descriptor"]["seed"] = config["model"]["fitting_net"]["seed"] = job["seed"]
    workers, steps = job["workers"], job["samples"] // job["workers"]
    config["optimizer"] = {"type": job["optimizer"]}
    rate = config["learning_rate"]
    for key in ("start_lr", "stop_lr"):
        rate[key] *= FACTORS[job["rule"]](workers)
    longer = job["samples"] / config["training"]["numb_steps"]
    rate["decay_steps"] = max(1, round(rate["decay_steps"] * longer / workers))
    rate["scale_by_worker"] = "auto" if job["rule"] == "auto" else "none"
    training = config["training"]
    training |= {"numb_steps": steps, "disp_freq": steps, "save_freq": steps, "seed": job["seed"], "acc_freq": workers}
    training["training_data"]["batch_size"] = 1
    training["validation_data"]["numb_btch"] = VALIDATION_FRAMES
    (folder / "input.json").write_text(json.dumps(config))
    (folder / "data").symlink_to(EXAMPLE / "data")


def report(runs: list[dict[str, Any]]) -> str:
    rows = []
    for setting in sorted({tuple(run[key] for key in SETTING) for run in runs}):
        alike = [run for run in runs if tuple(run[key] for key in SETTING) == setting]
        samples, optimizer, workers, rule = setting
        name = rule if workers > 1 else "any"
        forces, energies = spread(alike, "force"), spread(alike, "energy")
        steps = str(alike[0]["steps"])
        rows.append((str(samples), optimizer, str(workers), name, steps, forces, energies, str(len(alike))))
    header = ("frames seen", "", "workers", "rule", "steps", "force, meV/Å", "energy, meV/atom", "seeds")
    abouts = [run["about"] for run in runs if "about" in run]
    machines = " and ".join(sorted({about["processor"] for about in abouts}))
    about = (
        f"Copper example, errors on all {VALIDATION_FRAMES} validation frames in the end: mean over the seeds, and "
        f"smallest to largest.\nUp to {max(about['date'] for about in abouts)}, {machines}."
    )
    return f"{about}\n\n{table(header, rows)}"


def spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [1000 * run[key] for run in runs]
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
