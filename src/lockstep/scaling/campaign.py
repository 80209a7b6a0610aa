"""All runs of a scaling test, one after the other, and the files they end in."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.config import Input, load_input
from lockstep.errors import UserError
from lockstep.files import write_text
from lockstep.observe.budget import read_budget
from lockstep.scaling.launch import Launcher, RunFailedError, find_launcher, launch, worker_environment
from lockstep.scaling.measure import Measurement, measure
from lockstep.scaling.result import STRONG, WEAK, Conditions, make_result
from lockstep.scaling.tables import result_markdown, shares_line
from lockstep.scaling.trial import Dealt, Length, deal, trial_input
from lockstep.version import __version__

_BUSY = 0.3
"""A machine with more load than this on each core spoils the measurement."""


@dataclass(frozen=True)
class Campaign:
    """What is to be measured.

    Attributes:
        threads: of each worker; 0 divides the cores among them.
        predict: numbers of workers that the cost model is asked about.
    """

    input: str
    workers: tuple[int, ...]
    launcher: str
    strong: bool
    steps: int
    threads: int
    output: str
    predict: tuple[int, ...]

    def run(self) -> dict[str, Any]:
        """Make the runs and write the files; returns what `scaling.json` holds.

        Raises:
            RunFailedError: a run failed; the files tell of those before it, if there are any.
        """
        config = load_input(self.input)
        _check_data(config, Path(self.input).parent)
        launcher = find_launcher(self.launcher)
        folder = _new_folder(self.output)
        device, places = _machine()
        rows: list[Measurement] = []
        length = Length.of(self.steps)
        conditions = self._conditions(length, device, places, _other_load())
        for workers in self.workers:
            over = launcher.local and workers * max(1, self.threads if device == "cpu" else 1) > places
            dealt = deal(workers, config.training.acc_freq, self.strong)
            run = _Run(folder / str(workers), workers, dealt, length)
            run.prepare(config)
            if over:
                kind = "cores" if device == "cpu" else "GPUs"
                _say(f"{run.label}: oversubscribed, this machine has only {places} {kind}")
            rows.append(run.go(launcher, worker_environment(os.environ, self.threads), over))
            _write(folder, make_result(conditions, rows, self.predict))
        return make_result(conditions, rows, self.predict)

    def _conditions(self, length: Length, device: str, places: int, load: float) -> Conditions:
        return Conditions(
            input=Path(self.input).name,
            mode=STRONG if self.strong else WEAK,
            launcher=self.launcher,
            threads=self.threads,
            host=socket.gethostname(),
            device=device,
            places=places,
            load=round(load, 2),
            steps=length.counted,
            warmup=length.warmup,
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
            versions={"Lockstep": __version__, "torch": version("torch"), "Python": platform.python_version()},
        )


@dataclass(frozen=True)
class _Run:
    folder: Path
    workers: int
    dealt: Dealt
    length: Length

    @property
    def label(self) -> str:
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}"

    def prepare(self, config: Input) -> None:
        self.folder.mkdir()
        data = trial_input(config, self.length, self.dealt)
        write_text(self.folder / "input.json", json.dumps(data, indent=2) + "\n")

    def go(self, launcher: Launcher, environ: dict[str, str], oversubscribed: bool) -> Measurement:
        """Train, and measure."""
        arguments = ["train", "input.json", "--skip-neighbor-stat", "--profile", "--log-path", "train.log"]
        began = time.monotonic()
        _say(f"{self.label}: {self.length.total} steps in {self.folder}")
        launch(launcher.command(self.workers, arguments), self.folder, environ, lambda: self._tell(began))
        row = measure(self.folder, self.workers, self.dealt, self.length.warmup, oversubscribed)
        # A model of so few steps is of no use to anybody.
        for path in (*self.folder.glob("model.ckpt*.safetensors"), self.folder / "checkpoint"):
            path.unlink(missing_ok=True)
        _say(
            f"{self.label}: {row.samples_per_s:.4g} samples/s, {shares_line(row.budget)}"
            f" ({time.monotonic() - began:.0f} s)"
        )
        return row

    def _tell(self, began: float) -> None:
        path = self.folder / "budget.jsonl"
        lines = read_budget(path) if path.is_file() else []
        state = f"step {lines[-1]['step']} of {self.length.total}" if lines else "starting"
        _say(f"{self.label}: {state} ({time.monotonic() - began:.0f} s)")


def report_failure(error: RunFailedError) -> None:
    """Show the end of what a failed run said."""
    _say(f"\nThe run in {error.output.parent} {error}. The end of {error.output}:\n")
    for line in error.tail or ["(it said nothing)"]:
        _say(f"    {line}")


def _check_data(config: Input, folder: Path) -> None:
    """Find missing data before any worker is started."""
    from lockstep.data.search import find_systems

    data = config.training.training_data
    find_systems(data.systems, data.rglob_patterns, folder)


def _new_folder(output: str) -> Path:
    folder = Path(output)
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            "there are files in this folder already, and none are overwritten",
            where="--output",
            value=output,
            remedy="name another folder with -o, or remove this one",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror or error}", where="--output", value=output) from error
    return folder


def _machine() -> tuple[str, int]:
    """The kind of device that workers take, and how many there are here."""
    from lockstep.device import visible_gpus
    from lockstep.parallel.devices import device_type

    gpus = visible_gpus()
    device = device_type(os.environ, len(gpus))
    return device, len(gpus) if device == "cuda" else len(os.sched_getaffinity(0))


def _other_load() -> float:
    """The load of other programs, told if it is so much that it spoils the measurement."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        _say(f"Other programs are running here (load {load:.1f} on {cores} cores): the numbers will be too low.")
    return load


def _write(folder: Path, result: dict[str, Any]) -> None:
    write_text(folder / "scaling.json", json.dumps(result, indent=2) + "\n")
    write_text(folder / "scaling.md", result_markdown(result))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Numbers of workers such as `1,2,4`, in rising order."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError("expected numbers of workers such as 1,2,4", where=option, value=text)
    return tuple(sorted({int(word) for word in words}))
