"""What the learning rate should do when workers are added: 1, 2, 4 workers, linear, sqrt, none, at equal samples.

    python benchmarks/worker_scaling.py             six minutes or so on two free cores
    python benchmarks/worker_scaling.py --quick     does it work? figures mean nothing, and are not kept

The copper example under mpirun, each setting with several seeds. Steps and intervals are divided by the workers
(training.scale_steps_by_worker), so that every run sees as many samples. Writes worker_scaling.json beside this file,
and the table into docs/parallel.md.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from tables import replace_block, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "examples" / "copper"
VALIDATION_FRAMES = 32
RULES = ("linear", "sqrt", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=2000, help="frames that every run sees")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.samples = [1], 40
    began = time.time()
    runs = [
        measure(workers, rule, seed, arguments.samples)
        for seed in arguments.seeds
        for workers in arguments.workers
        for rule in (RULES if workers > 1 else ("none",))
    ]
    record = {"samples": arguments.samples, "seeds": arguments.seeds, "runs": runs}
    text = report(record)
    print(text)
    print(f"\n{time.time() - began:.0f} s in all", file=sys.stderr)
    if not arguments.quick:
        (HERE / "worker_scaling.json").write_text(json.dumps(record, indent=1) + "\n")
        replace_block(ROOT / "docs" / "parallel.md", "worker_scaling", text)


def measure(workers: int, rule: str, seed: int, samples: int) -> dict[str, Any]:
    """Train once; the errors on all validation frames in the end."""
    with tempfile.TemporaryDirectory() as folder:
        write_input(Path(folder), rule, seed, samples)
        command = [str(BIN / "dp"), "train", "input.json"]
        if workers > 1:
            command = [str(BIN / "mpirun"), "-np", str(workers), *command]
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
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        lines = (Path(folder) / "lcurve.out").read_text().splitlines()
    last = dict(zip(lines[0].removeprefix("#").split(), lines[-1].split(), strict=True))
    result = {"workers": workers, "rule": rule, "seed": seed, "steps": int(last["step"])}
    result |= {"force": float(last["rmse_f_val"]), "energy": float(last["rmse_e_val"]), "seconds": time.time() - began}
    print(result, file=sys.stderr)
    return result


def write_input(folder: Path, rule: str, seed: int, samples: int) -> None:
    config = json.loads((EXAMPLE / "input.json").read_text())
    config["model"]["descriptor"]["seed"] = config["model"]["fitting_net"]["seed"] = seed
    config["learning_rate"]["scale_by_worker"] = rule
    training = config["training"]
    training |= {"numb_steps": samples, "disp_freq": samples, "save_freq": samples, "seed": seed}
    training["scale_steps_by_worker"] = True
    training["training_data"]["batch_size"] = 1
    training["validation_data"]["numb_btch"] = VALIDATION_FRAMES
    (folder / "input.json").write_text(json.dumps(config))
    (folder / "data").symlink_to(EXAMPLE / "data")


def report(record: dict[str, Any]) -> str:
    settings = dict.fromkeys((run["workers"], run["rule"]) for run in record["runs"])
    rows = []
    for workers, rule in settings:
        runs = [run for run in record["runs"] if (run["workers"], run["rule"]) == (workers, rule)]
        name = rule if workers > 1 else "any"
        forces, energies = spread(runs, "force"), spread(runs, "energy")
        rows.append((str(workers), name, str(runs[0]["steps"]), forces, energies))
    header = ("workers", "`scale_by_worker`", "steps", "force, meV/Å", "energy, meV/atom")
    seeds = ", ".join(map(str, record["seeds"]))
    about = (
        f"Copper example, {record['samples']} frames seen in every run, errors on all {VALIDATION_FRAMES} validation "
        f"frames in the end:\nmean over the seeds {seeds}, and smallest to largest."
    )
    return f"{about}\n\n{table(header, rows)}"


def spread(runs: list[dict[str, Any]], key: str) -> str:
    values = [1000 * run[key] for run in runs]
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
