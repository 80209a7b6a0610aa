"""Step time, start-up and memory of all programs on the same input, in alternation; and the limit beside them."""

from __future__ import annotations

import json
import math
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs
from measure import Run, call, cores_from, environment, pinned, say, watch
from programs import LOCKSTEP, PROGRAMS, Program

TIMEOUT = 900.0
WARM_PASSES = 1.5
"""Passes over the data before Lockstep is timed: by then it has kept the neighbour lists."""
DIFFERENCE = re.compile(r"differs from the exact nets by at most (\S+) eV/A in forces, (\S+) eV/atom")
INTERVALS = re.compile(r"spectral embedding: .*?(\d+) intervals")
OWN_FIGURE = re.compile(r"average training time: (\S+) s/batch")

Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A precision and a batch size.

    Attributes:
        threads: of the program, each on a core of its own.
        descriptor: that of `inputs.descriptors`; the water example's own where it is empty.
        every: steps between two rows of the learning curve.
        spared: rounds that are left out, where runs are long.
    """

    precision: str
    batch: int
    every: int
    spared: int = 0
    descriptor: str = ""
    threads: int = 1

    @property
    def name(self) -> str:
        own = f"{self.descriptor}, " if self.descriptor else ""
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{own}{self.precision}, batch {self.batch}{threads}"

    def cores(self, core: int) -> list[int]:
        """Those to run on, `core` first; any where it is negative."""
        return [core] if core < 0 else cores_from(core, self.threads)

    def config(self) -> Record:
        config = inputs.water(self.precision, self.batch)
        if not self.descriptor:
            return config
        return inputs.described(config, inputs.descriptors()[self.descriptor], self.precision)


CASES = (Case("float64", 1, 20), Case("float32", 1, 20), Case("float64", 8, 5, 1), Case("float32", 8, 5, 1))
THREAD_CASES = tuple(
    Case("float64", batch, every, threads=threads) for batch, every in ((1, 20), (8, 5)) for threads in (1, 2)
)
QUICK_CASES = (Case("float64", 1, 2), Case("float32", 8, 1))


def descriptor_cases(brief: bool) -> tuple[Case, ...]:
    """Other descriptors than the example's own; where it shall be brief, so few steps that nothing is kept yet."""
    return tuple(Case("float64", 1, 5 if brief else 20, descriptor=name) for name in inputs.descriptors())


def measure_speed(
    keys: list[str],
    cases: tuple[Case, ...],
    rounds: int,
    core: int,
    quick: bool,
    keep: Callable[[Record], None],
    known: Record | None = None,
) -> Record:
    """All programs in turn, all cases, several times over; `keep` gets what there is after every round.

    `known` are cases that were measured at another time.
    """
    results: Record = {**(known or {}), **{case.name: {"batch": case.batch, "rounds": []} for case in cases}}
    for number in range(rounds):
        for case in (case for case in cases if number < max(1, rounds - case.spared)):
            say(f"round {number + 1} of {rounds}: {case.name}")
            one: Record = {} if case.descriptor else measure_limits(case, core, quick)
            for key in keys:
                one[key] = measure_program(PROGRAMS[key], case, core, quick)
                say(f"    {PROGRAMS[key].title:24s} {describe(one[key])}")
            results[case.name]["rounds"].append(one)
        keep({"cases": results})
    return {"cases": results}


def measure_program(program: Program, case: Case, core: int, quick: bool) -> Record:
    """One run of one program. DeePMD-kit keeps nothing between passes and needs few steps to show its speed."""
    config = case.config()
    one_pass = math.ceil(inputs.frames(config) / case.batch)
    since, steps = case.every, 3 * case.every
    if program is LOCKSTEP and not quick:
        since = math.ceil(WARM_PASSES * one_pass)
        steps = since + one_pass
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        inputs.write(inputs.lasting(config, steps, case.every), folder)
        command = pinned(program.call("train", "input.json"), *case.cores(core))
        run = watch(command, folder, environment(case.threads), TIMEOUT)
    record = summary(run, since)
    if program is LOCKSTEP:
        record |= about_spectral(run.log)
        record["step_first_pass"] = statistics.median(
            s for s, _ in run.intervals(case.every, max(one_pass, 3 * case.every))
        )
    return record


def summary(run: Run, since: int) -> Record:
    """The figures of a run, its speed from step `since` on.

    TensorFlow's backend evaluates the loss once more at each display. Its own figure leaves that out, so it is taken
    where it is the better one.
    """
    seconds, processor = zip(*run.intervals(since), strict=True)
    seen = statistics.median(seconds)
    own = OWN_FIGURE.search(run.log)
    return {
        "step": min(seen, float(own.group(1))) if own else seen,
        "step_seen": seen,
        "step_processor": statistics.median(processor),
        "processor_share": sum(processor) / sum(seconds),
        "first_step": run.first_step,
        "first_step_processor": run.rows[0].processor,
        "memory": run.memory,
        "memory_all": run.memory_all,
        "seconds": run.seconds,
    }


def about_spectral(log: str) -> Record:
    """What Lockstep logged of its embedding: intervals at the end, and the difference from the exact nets."""
    record: Record = {}
    if intervals := INTERVALS.findall(log):
        record["intervals"] = int(intervals[-1])
    if difference := DIFFERENCE.search(log):
        record |= {"force_difference": float(difference.group(1)), "energy_difference": float(difference.group(2))}
    return record


def measure_limits(case: Case, core: int, quick: bool) -> Record:
    """Seconds that the unavoidable matrix products of a step take on this machine, now: at best, and by torch."""
    config = inputs.water(case.precision, case.batch)
    atoms = [str(case.batch * n) for n in inputs.atoms_of_types(config)]
    widths = list(map(str, inputs.fitting_widths(config)))
    script = Path(__file__).with_name("gemm.py")
    command = [str(LOCKSTEP.bin / "python"), str(script), "--precision", case.precision]
    command += ["--atoms", *atoms, "--widths", *widths, "--seconds", "0.2" if quick else "3"]
    command += ["--threads", str(case.threads)]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        text = call(pinned(command, *case.cores(core)), Path(folder), environment(case.threads), TIMEOUT)
    times = json.loads(text.splitlines()[-1])
    return {"limit": min(times.values()), "limit_torch": times["torch"]}


def measure_trained(core: int, quick: bool) -> Record:
    """Lockstep alone over a whole short training: nets sharpen as they learn, and finer splines cost more."""
    steps, every = (60, 10) if quick else (3000, 100)
    config = inputs.learning(inputs.water("float64", 1), 1e-3, 1e-5, 50)
    config["training"]["validation_data"] = {"systems": [str(inputs.WATER / "data" / "validation")], "batch_size": 1}
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        inputs.write(inputs.lasting(config, steps, every), folder)
        run = watch(pinned(LOCKSTEP.call("train", "input.json"), core), folder, environment(), TIMEOUT)
    record = summary(run, steps - 5 * every) | about_spectral(run.log) | {"steps": steps}
    say(f"    {LOCKSTEP.title:24s} {describe(record)}")
    return record


def describe(record: Record) -> str:
    return (
        f"{1000 * record['step']:8.1f} ms a step ({1000 * record['step_processor']:.1f} ms of processor), first after "
        f"{record['first_step']:.1f} s, {record['memory']:.0f} MB, {record['seconds']:.0f} s in all"
    )
