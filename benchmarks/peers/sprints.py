"""Time to accuracy with schedules as short as the mark allows: the shortest training that ends below it.

The race's runs are made for 3000 steps, and pass the mark on the way. Who wants no more than the mark would let the
learning rate fall sooner. Each program gets that chance here: trainings of a few hundred steps, from the command to the
last row of the learning curve, which alone asks for the error on unseen frames.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs
from measure import CURVE, about_machine, environment, pinned, say, watch
from programs import PROGRAMS
from race import Runner, errors_of

TIMEOUT = 1800.0
FRAMES = 20
"""Unseen frames of the error in the end."""
FALLS = 20
"""In so many stairs the learning rate falls by 100."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Sprint:
    """A runner and how many steps it takes."""

    runner: Runner
    steps: int

    @property
    def name(self) -> str:
        return f"{self.runner.name}, {self.steps} steps"


SPRINTS = (
    *(Sprint(Runner("lockstep", "SOAP", 1e-3), steps) for steps in (100, 150, 200, 300)),
    *(Sprint(Runner("lockstep", "SOAP", 2e-3), steps) for steps in (100, 150, 200)),
    *(Sprint(Runner("lockstep", "Adam", 1e-2), steps) for steps in (200, 300, 400)),
    *(Sprint(Runner("tensorflow", "Adam", 1e-2), steps) for steps in (200, 300, 400)),
    *(Sprint(Runner("tensorflow", "Adam", 3e-3), steps) for steps in (300, 400)),
    *(Sprint(Runner("pytorch", "Adam", 1e-2), steps) for steps in (300, 400)),
    *(Sprint(Runner("pytorch", "HybridMuon", 1e-2), steps) for steps in (300,)),
)


def measure_sprints(
    keys: list[str], cores: list[list[int]], only: str, earlier: Record, keep: Callable[[Record], None]
) -> Record:
    """All sprints of these programs on these cores that are not in `earlier` yet; `keep` gets each at its end.

    `only` those whose name begins so.
    """
    runs: Record = earlier.get("runs", {})
    for taken in cores:
        for sprint in (one for one in SPRINTS if one.runner.program in keys and one.name.startswith(only)):
            name = f"{sprint.name}, {len(taken)} {'core' if len(taken) == 1 else 'cores'}"
            if name not in runs:
                runs[name] = run_one(sprint, taken)
                say(f"    {name}: {runs[name]['error']:.4f} eV/A after {runs[name]['seconds']:.1f} s")
                keep({"runs": runs})
    return {"runs": runs}


def run_one(sprint: Sprint, cores: list[int]) -> Record:
    runner, steps = sprint.runner, sprint.steps
    config = inputs.learning(inputs.water("float64", 1), runner.rate, runner.rate / 100, max(1, steps // FALLS))
    config = inputs.lasting(config, steps, steps)
    config["training"]["validation_data"] = {
        "systems": [str(inputs.WATER / "data" / "validation")],
        "batch_size": 1,
        "numb_btch": FRAMES,
    }
    if runner.optimizer != "Adam":
        config["optimizer"] = {"type": runner.optimizer}
    with tempfile.TemporaryDirectory(prefix="sprint-") as name:
        folder = Path(name)
        inputs.write(inputs.seeded(config, 1), folder)
        command = pinned(PROGRAMS[runner.program].call("train", "input.json"), *cores)
        run = watch(command, folder, environment(len(cores)), TIMEOUT)
        error = errors_of(folder / CURVE)[steps]
    about = {"program": runner.program, "optimizer": runner.optimizer, "rate": runner.rate, "cores": len(cores)}
    return {**about, "steps": steps, "error": error, "seconds": run.rows[-1].seconds, "about": about_machine()}
