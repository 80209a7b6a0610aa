"""Validation error after the same training, by all programs, several seeds each."""

from __future__ import annotations

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import inputs
from measure import OWN_CORES, call, environment, pinned, say, watch
from programs import LOCKSTEP, PROGRAMS, PYTORCH, Program
from speed import about_spectral

TIMEOUT = 3 * 3600.0
FORCE_ERROR = re.compile(r"Force\s+RMSE\s*:\s*(\S+)")
ENERGY_ERROR = re.compile(r"Energy\s+RMSE/Natoms\s*:\s*(\S+)")
FROZEN = {"lockstep": "model.dp", "tensorflow": "model.pb"}
VALIDATION = inputs.WATER / "data" / "validation"


def measure_accuracy(keys: list[str], steps: int, seeds: int, earlier: dict[str, Any]) -> dict[str, Any]:
    """Train and test. As many trainings at once as there are cores, one on each: nothing is timed here.

    Runs of other programs are taken over from `earlier`, where they were as long and as many.
    """
    cores: SimpleQueue[int] = SimpleQueue()
    for core in OWN_CORES:
        cores.put(core)

    def work(job: tuple[str, int]) -> dict[str, Any]:
        core = cores.get()
        try:
            return train_and_test(PROGRAMS[job[0]], steps, job[1], core)
        finally:
            cores.put(core)

    jobs = [(key, seed) for seed in range(1, seeds + 1) for key in keys]
    with ThreadPoolExecutor(cores.qsize()) as pool:
        answers = list(pool.map(work, jobs))
    comparable = (earlier.get("steps"), earlier.get("seeds")) == (steps, seeds)
    errors: dict[str, list[dict[str, Any]]] = (earlier["runs"] if comparable else {}) | {key: [] for key in keys}
    for (key, _), answer in zip(jobs, answers, strict=True):
        errors[key].append(answer)
    return {"steps": steps, "seeds": seeds, "runs": errors}


def train_and_test(program: Program, steps: int, seed: int, core: int) -> dict[str, Any]:
    """Train with one seed, then test on all validation frames with the program's own command."""
    config = inputs.learning(inputs.water("float64", 1), 1e-3, 1e-5, 50)
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        inputs.write(inputs.seeded(inputs.lasting(config, steps, max(1, steps // 10)), seed), folder)
        run = watch(pinned(program.call("train", "input.json"), core), folder, environment(), TIMEOUT)
        text = test(program, folder, core)
    force, energy = FORCE_ERROR.search(text), ENERGY_ERROR.search(text)
    assert force, text
    assert energy, text
    answer = {"seed": seed, "force": float(force.group(1)), "energy": float(energy.group(1)), "seconds": run.seconds}
    if program is LOCKSTEP:
        answer |= about_spectral(run.log)
    say(f"    {program.title:24s} seed {seed}: {answer['force']:.4f} eV/A after {steps} steps, {run.seconds:.0f} s")
    return answer


def test(program: Program, folder: Path, core: int) -> str:
    """What the program's own test says of the model that it trained; Lockstep's is of the exact nets."""
    model = FROZEN.get(program.key, "model.ckpt.pt")
    if program is not PYTORCH:
        call(pinned(program.call("freeze", "-o", model), core), folder, environment(), TIMEOUT)
    command = program.call("test", "-m", model, "-s", str(VALIDATION), "-n", "1000000")
    return call(pinned(command, core), folder, environment(), TIMEOUT)
