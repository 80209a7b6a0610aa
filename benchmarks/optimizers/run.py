"""Optimizers side by side on data sets of different kinds: errors on unseen frames after equal numbers of steps.

    python benchmarks/optimizers/run.py                              all of it: half a day on one core
    python benchmarks/optimizers/run.py --data copper --steps 300    a part of it
    python benchmarks/optimizers/run.py --report                     only write the tables of what is there

Needs the data sets of data.py. One run after the other, one thread each. Every run is kept in results.json beside this
file as soon as it is done, and is not done again. The tables go into docs/optimizers.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from measure import about_machine
from tables import replace_block, table

from data import FOLDER, KINDS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "optimizers.md"
RESULTS = HERE / "results.json"
DATA = ("water", "copper", *KINDS)
HELD_OUT = "silicon"
"""Of this data set nothing was looked at before all defaults were settled."""
SETTINGS = (("Adam", 1e-3), ("Adam", 3e-3), ("Adam", 1e-2), ("SOAP", 1e-3), ("SOAP", 2e-3))
CUTOFFS = {"molecule": (0.5, 6.0)}
Job = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--data-folder", type=Path, default=FOLDER, help="where data.py wrote to")
    parser.add_argument("--optimizers", nargs="+", choices=["Adam", "SOAP"], default=["Adam", "SOAP"])
    parser.add_argument("--rates", type=float, nargs="+", default=[rate for _, rate in SETTINGS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, nargs="+", default=[300, 3000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--report", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    done: list[Job] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for job in [] if arguments.report else jobs_of(arguments):
        if not any(job.items() <= one.items() for one in done):
            done.append(measure(job, arguments.data_folder))
            RESULTS.write_text(json.dumps(done, indent=1) + "\n")
            print({key: value for key, value in done[-1].items() if key != "about"}, flush=True)
    replace_block(PAGE, "optimizers", report(done))


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """What was asked for, short runs first."""
    choices = itertools.product(arguments.steps, arguments.seeds, arguments.batch, arguments.data, SETTINGS)
    return [
        {"data": data, "type": kind, "rate": rate, "steps": steps, "batch": batch, "seed": seed}
        for steps, seed, batch, data, (kind, rate) in choices
        if kind in arguments.optimizers and rate in arguments.rates
    ]


def measure(job: Job, folder: Path) -> Job:
    """Train once; the errors on all validation frames in the end."""
    about = about_machine()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "input.json").write_text(json.dumps(input_of(job, folder)))
        began = time.time()
        done = subprocess.run(
            [str(Path(sys.executable).parent / "dp"), "train", "input.json"],
            cwd=name,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{job}:\n{done.stderr}")
        lines = (Path(name) / "lcurve.out").read_text().splitlines()
    last = dict(zip(lines[0].removeprefix("#").split(), lines[-1].split(), strict=True))
    errors = {"force": float(last["rmse_f_val"]), "energy": float(last["rmse_e_val"])}
    return {**job, **errors, "seconds": time.time() - began, "about": about}


def input_of(job: Job, folder: Path) -> dict[str, Any]:
    """The example's own model for water and copper, copper's model for the others."""
    own = job["data"] in ("water", "copper")
    example = EXAMPLES / (job["data"] if own else "copper")
    config: dict[str, Any] = json.loads((example / "input.json").read_text())
    training = config["training"]
    if own:
        for part in ("training_data", "validation_data"):
            training[part]["systems"] = [str(example / system) for system in training[part]["systems"]]
    else:
        adapt(config, job["data"], folder / job["data"])
    config["model"]["descriptor"]["seed"] = config["model"]["fitting_net"]["seed"] = training["seed"] = job["seed"]
    rate, steps = job["rate"], job["steps"]
    config["learning_rate"] = {"start_lr": rate, "stop_lr": rate / 100, "decay_steps": max(1, steps // 60)}
    config["optimizer"] = {"type": job["type"]}
    training |= {"numb_steps": steps, "disp_freq": steps, "save_freq": steps}
    training["training_data"]["batch_size"] = job["batch"]
    training["validation_data"] |= {"batch_size": 1, "numb_btch": 60 if job["data"] == "water" else 30}
    return config


def adapt(config: dict[str, Any], name: str, folder: Path) -> None:
    """Copper's input for another data set."""
    smooth, cutoff = CUTOFFS.get(name, (2.0, 5.0))
    config["model"]["type_map"] = (folder / "train" / "type_map.raw").read_text().split()
    config["model"]["descriptor"] |= {"sel": "auto", "rcut_smth": smooth, "rcut": cutoff}
    config["loss"] |= {"start_pref_v": 0, "limit_pref_v": 0}
    for part, system in (("training_data", "train"), ("validation_data", "validation")):
        config["training"][part]["systems"] = [str(folder / system)]


def report(done: list[Job]) -> str:
    """One table for each length and batch size, the data set that was kept out last."""
    parts = []
    for steps, batch in sorted({(job["steps"], job["batch"]) for job in done}):
        runs = [job for job in done if (job["steps"], job["batch"]) == (steps, batch)]
        settings = [one for one in SETTINGS if any(one == (job["type"], job["rate"]) for job in runs)]
        header = ("", *(f"{kind}, {rate:g}" for kind, rate in settings), "SOAP over the best Adam")
        rows = [row(name, runs, settings) for name in DATA if any(job["data"] == name for job in runs)]
        parts.append(f"#### {steps} steps, batch {batch}\n\n{table(header, rows)}")
    if not done:
        return "Nothing has been measured yet: `python benchmarks/optimizers/run.py`."
    dates = sorted(job["about"]["date"] for job in done)
    machines = " and ".join(sorted({job["about"]["processor"] for job in done}))
    parts.append(
        f"Force errors on unseen frames, eV/Å, mean over the seeds and in brackets how many there were; `start_lr` "
        f"falls by 100 over the run. `{HELD_OUT}` was kept out of all tuning. {dates[0]} to {dates[-1]}, "
        f"{machines}, one core each; `python benchmarks/optimizers/run.py`."
    )
    return "\n\n".join(parts)


def row(name: str, runs: list[Job], settings: list[tuple[str, float]]) -> tuple[str, ...]:
    means: dict[tuple[str, float], float] = {}
    cells = []
    for kind, rate in settings:
        forces = [job["force"] for job in runs if (job["data"], job["type"], job["rate"]) == (name, kind, rate)]
        if forces:
            means[kind, rate] = statistics.mean(forces)
        cells.append(f"{means[kind, rate]:.3g} ({len(forces)})" if forces else "-")
    best = [min((m for (kind, _), m in means.items() if kind == wanted), default=0.0) for wanted in ("SOAP", "Adam")]
    return (name, *cells, f"**{best[0] / best[1]:.2f}**" if all(best) else "-")


if __name__ == "__main__":
    main()
