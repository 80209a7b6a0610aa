"""Time to accuracy: seconds, start-up included, until the error on unseen frames is below a mark.

The mark is what DeePMD-kit's TensorFlow has after all steps at its default learning rate. Every run is kept as soon as
it is done and not done again, so that a race of hours can be run piece by piece; all runs but those of SOAP end where
they have passed the mark, or have taken longer than the run that has set it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs
from measure import CURVE, ROOT, about_machine, environment, pinned, say, watch
from programs import PROGRAMS

from lockstep.observe.picture import STYLE, pyplot

TIMEOUT = 6 * 3600.0
ROWS = 120
"""Rows of the learning curve, each with the error on `FRAMES` unseen frames, which is part of the time."""
FRAMES = 4
SMOOTHED = 5
"""An error is the median of this many rows: each row has other frames."""
AGREED = 3
"""So many rows in turn below the mark, and a run has passed it beyond doubt."""
PICTURE = ROOT / "docs" / "pictures" / "race.png"
Record = dict[str, Any]


@dataclass(frozen=True)
class Runner:
    """A program with an optimizer and its learning rate at the start, which falls by 100 over the run."""

    program: str
    optimizer: str
    rate: float

    @property
    def name(self) -> str:
        return f"{self.program}, {self.optimizer}, {self.rate:g}"


RATES = (1e-3, 3e-3, 1e-2)
MARK = Runner("tensorflow", "Adam", RATES[0])
RUNNERS = (
    MARK,
    *(Runner("lockstep", "SOAP", rate) for rate in (1e-3, 2e-3)),
    *(Runner("lockstep", "Adam", rate) for rate in RATES),
    *(Runner("tensorflow", "Adam", rate) for rate in RATES[1:]),
    *(Runner("pytorch", "Adam", rate) for rate in RATES),
    *(Runner("pytorch", "HybridMuon", rate) for rate in RATES),
)


def measure_race(
    keys: list[str], cores: list[list[int]], steps: int, only: str, earlier: Record, keep: Callable[[Record], None]
) -> Record:
    """All runners of these programs on these cores that are not in `earlier` yet; `keep` gets each at its end.

    `only` those whose name begins so.
    """
    runs: Record = earlier.get("runs", {}) if earlier.get("steps") == steps else {}
    for taken in cores:
        for runner in (one for one in RUNNERS if one.program in keys and one.name.startswith(only)):
            name = f"{runner.name}, {len(taken)} {'core' if len(taken) == 1 else 'cores'}"
            if name not in runs:
                whole = runner == MARK or runner.optimizer == "SOAP"
                runs[name] = run_one(runner, taken, steps, None if whole else runs.get(f"{MARK.name}, 1 core"))
                say(f"    {name}: {runs[name]['rows'][-1][2]:.4f} eV/A after {runs[name]['seconds']:.0f} s")
                keep({"steps": steps, "runs": runs})
    draw(runs, PICTURE)
    return {"steps": steps, "runs": runs}


CONTEST = (Runner("lockstep", "SOAP", 1e-3), Runner("tensorflow", "Adam", 3e-3), Runner("pytorch", "Adam", 3e-3))
"""Each program at its best, of what the race has on two cores."""


def measure_minutes(
    keys: list[str], cores: list[int], minutes: float, race: Record, earlier: Record, keep: Callable[[Record], None]
) -> Record:
    """How far each program gets in so many minutes, start-up included: as many steps as the race's own speed allows."""
    runs: Record = earlier.get("runs", {}) if earlier.get("minutes") == minutes else {}
    for runner in (one for one in CONTEST if one.program in keys and one.name not in runs):
        seen = race["runs"][f"{runner.name}, {len(cores)} cores"]["rows"]
        (first, begun, *_), (last, ended, *_) = seen[0], seen[-1]
        steps = int((60 * minutes - begun) * (last - first) / (ended - begun))
        runs[runner.name] = {"steps": steps, **run_one(runner, cores, steps, None)}
        say(f"    {runner.name}: {smoothed(runs[runner.name])[-1][1]:.4f} eV/A, {steps} steps")
        keep({"minutes": minutes, "runs": runs})
    return {"minutes": minutes, "runs": runs}


def run_one(runner: Runner, cores: list[int], steps: int, rival: Record | None) -> Record:
    """Train, and read when each row of the learning curve came and what error it has; to the mark of the rival, or as
    long as it took."""
    every = max(1, steps // ROWS)
    config = inputs.learning(inputs.water("float64", 1), runner.rate, runner.rate / 100, every)
    config = inputs.lasting(config, steps, every)
    config["training"]["validation_data"] = {
        "systems": [str(inputs.WATER / "data" / "validation")],
        "batch_size": 1,
        "numb_btch": FRAMES,
    }
    if runner.optimizer != "Adam":
        config["optimizer"] = {"type": runner.optimizer}
    program = PROGRAMS[runner.program]
    with tempfile.TemporaryDirectory(prefix="race-") as name:
        folder = Path(name)
        inputs.write(inputs.seeded(config, 1), folder)
        command = pinned(program.call("train", "input.json"), *cores)
        end = time.monotonic() + (rival["seconds"] if rival else TIMEOUT)
        run = watch(
            command,
            folder,
            environment(len(cores)),
            TIMEOUT,
            lambda: time.monotonic() > end or (rival is not None and passed(folder / CURVE, smoothed(rival)[-1][1])),
        )
        errors = errors_of(folder / CURVE)
    rows = [(row.step, row.seconds, errors[row.step], row.processor) for row in run.rows if row.step in errors]
    about = {"program": runner.program, "optimizer": runner.optimizer, "rate": runner.rate, "cores": len(cores)}
    return {**about, "rows": rows, "seconds": run.seconds, "about": about_machine()}


def passed(curve: Path, mark: float) -> bool:
    """Whether a run has been below the mark for long enough."""
    errors = medians(list(errors_of(curve).values()))
    return len(errors) >= AGREED and max(errors[-AGREED:]) < mark


def errors_of(curve: Path) -> dict[int, float]:
    """Force error on unseen frames by step."""
    lines = curve.read_text().split("\n")[:-1]
    names = lines[0].lstrip("#").split()
    column = names.index("rmse_f_val")
    rows = (line.split() for line in lines if line.strip() and not line.startswith("#"))
    return {int(row[0]): float(row[column]) for row in rows}


def medians(errors: list[float]) -> list[float]:
    """Each error as the median of it and the few before it."""
    return [statistics.median(errors[max(0, end - SMOOTHED) : end]) for end in range(1, len(errors) + 1)]


def smoothed(run: Record) -> list[tuple[float, float]]:
    """Seconds and error of each row, the error a median of the last few."""
    errors = medians([row[2] for row in run["rows"]])
    return [(row[1], error) for row, error in zip(run["rows"], errors, strict=True)]


def mark_of(runs: Record) -> float | None:
    """The error to get below; None while the run that sets it is missing."""
    run = runs.get(f"{MARK.name}, 1 core")
    return smoothed(run)[-1][1] if run else None


def seconds_to(run: Record, mark: float) -> float | None:
    """When a run was below the mark for the first time."""
    return next((seconds for seconds, error in smoothed(run) if error < mark), None)


COLOURS = {
    ("lockstep", "SOAP"): "#0072B2",
    ("lockstep", "Adam"): "#56B4E9",
    ("tensorflow", "Adam"): "#D55E00",
    ("pytorch", "Adam"): "#CC79A7",
    ("pytorch", "HybridMuon"): "#E69F00",
}
DASHES = {1e-3: "-", 2e-3: "--", 3e-3: "--", 1e-2: ":"}


def draw(runs: Record, path: Path) -> None:
    """Error against seconds, both logarithmic, one panel for each number of cores."""
    plt = pyplot()
    counts = sorted({run["cores"] for run in runs.values()})
    mark = mark_of(runs)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1,
            len(counts),
            figsize=(8.6 if len(counts) > 1 else 7.2, 4.4),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for panel, count in zip(panels[0], counts, strict=True):
            for runner in RUNNERS:
                run = runs.get(f"{runner.name}, {count} {'core' if count == 1 else 'cores'}")
                if run:
                    _draw_run(panel, runner, run)
            if mark:
                panel.axhline(mark, color="#8c8c8c", linewidth=0.8)
            panel.set(xlabel="seconds since the command", title=f"{count} {'core' if count == 1 else 'cores'}")
        panels[0][0].set_ylabel("force error on unseen frames, eV/Å")
        panels[0][0].legend(fontsize=8, frameon=False, loc="lower left" if len(counts) > 1 else "upper right")
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _draw_run(panel: Any, runner: Runner, run: Record) -> None:
    seconds, errors = zip(*smoothed(run), strict=True)
    panel.loglog(
        seconds,
        errors,
        color=COLOURS[runner.program, runner.optimizer],
        linestyle=DASHES[runner.rate],
        linewidth=2.2 if runner.optimizer == "SOAP" else 1.4,
        label=f"{PROGRAMS[runner.program].title}, {runner.optimizer}, {runner.rate:g}",
    )
