"""Where the time of a step goes: shares of the phases, samples a second, the slowest rank; at every display."""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lockstep.errors import UserError
from lockstep.files import describe_failure, write_atomically
from lockstep.phases import BUSY, CHECKPOINT, COMMUNICATION, DATA, GEOMETRY, PHASES, VALIDATION, WAIT

if TYPE_CHECKING:
    from lockstep.parallel.group import Group

log = logging.getLogger(__name__)

_SHOWN_EACH = 8
"""Up to this many ranks the line names every rank's samples a second."""
_VISIBLE = 0.005
_ENOUGH, _MANY, _LONG_ENOUGH = 0.8, 100, 5.0
"""Part of its cores that a rank gets which has them for itself, how often in a second threads lose a core that they
share, and for how many seconds that must have been so."""


class Intake(Protocol):
    """Where samples come from, with what they have cost so far; a `DpLoaderSet` is one."""

    frames: int
    prepared: float


class Scalars(Protocol):
    """A writer of named numbers."""

    def add(self, step: int, values: Mapping[str, float]) -> None: ...


@dataclass(frozen=True)
class Interval:
    """What one rank did between two displays.

    Attributes:
        seconds: how long it was in each phase; together the whole interval.
        geometry: processor seconds that its loader threads took for geometry, beside the phases.
        frames: those it worked on; of a frame that ranks share, its share.
        processor: processor seconds of all its threads.
        evictions: how often a thread lost its core to another one.
    """

    seconds: dict[str, float]
    geometry: float
    frames: float
    processor: float = 0.0
    evictions: int = 0

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    @property
    def own(self) -> float:
        """Seconds that this rank needed for its own work, not for or because of the others."""
        return self.wall - self.seconds[WAIT] - self.seconds[COMMUNICATION]


@dataclass(frozen=True)
class Summary:
    """The same of all ranks together; one line of `budget.jsonl`.

    Attributes:
        time: seconds since 1970.
        wall: seconds since the last display.
        budget: share of each phase, the mean over the ranks; the shares add up to 1.
        geometry_ahead: processor time of the loader threads for geometry, as a share of `wall`.
        slowest: the rank with most work of its own, which the others wait for.
        busy: share of the phases in which the device computes.
        cores: processor time of a rank's threads over `wall`, the mean over the ranks.
    """

    step: int
    time: float
    wall: float
    steps: int
    samples: int
    samples_per_s: float
    per_rank_samples_per_s: list[float]
    per_rank_wait: list[float]
    budget: dict[str, float]
    geometry_ahead: float
    slowest: int
    fastest: int
    busy: float
    cores: float

    def line(self) -> str:
        """For the log."""
        shares = [
            f"{name} {100 * share:.0f} %"
            for name, share in self.budget.items()
            if share >= _VISIBLE or name not in (GEOMETRY, VALIDATION, CHECKPOINT)
        ]
        if self.geometry_ahead > 0:
            shares.insert(1, f"geometry(ahead) {100 * self.geometry_ahead:.0f} %")
        speed = f"{self.samples_per_s:.3g} samples/s{self._ranks()}"
        return f"budget: {' '.join(shares)} | {speed}, busy {100 * self.busy:.0f} %"

    def scalars(self) -> dict[str, float]:
        """For TensorBoard."""
        shares = {f"budget/{name}": share for name, share in self.budget.items()}
        speeds = {f"speed/rank {rank}": value for rank, value in enumerate(self.per_rank_samples_per_s)}
        return {
            **shares,
            "budget/geometry_ahead": self.geometry_ahead,
            "budget/busy": self.busy,
            "speed/samples_per_s": self.samples_per_s,
            **(speeds if 1 < len(speeds) <= _SHOWN_EACH else {}),
        }

    def _ranks(self) -> str:
        speeds = self.per_rank_samples_per_s
        if len(speeds) == 1:
            return ""
        if len(speeds) <= _SHOWN_EACH:
            each = " + ".join(f"{speed:.3g}" for speed in speeds)
        else:
            each = f"{min(speeds):.3g} to {max(speeds):.3g} on each of {len(speeds)} ranks"
        return f" ({each}), slowest rank {self.slowest}"


def summarise(step: int, steps: int, now: float, ranks: Sequence[Interval]) -> Summary:
    """Put the intervals of all ranks together."""
    wall = sum(rank.wall for rank in ranks) / len(ranks)
    own = [rank.own for rank in ranks]
    budget = {name: sum(rank.seconds[name] for rank in ranks) / (len(ranks) * wall) for name in PHASES}
    return Summary(
        step=step,
        time=now,
        wall=wall,
        steps=steps,
        samples=round(sum(rank.frames for rank in ranks)),
        samples_per_s=sum(rank.frames / rank.wall for rank in ranks),
        per_rank_samples_per_s=[rank.frames / rank.wall for rank in ranks],
        per_rank_wait=[rank.seconds[WAIT] / rank.wall for rank in ranks],
        budget=budget,
        geometry_ahead=sum(rank.geometry for rank in ranks) / (len(ranks) * wall),
        slowest=own.index(max(own)),
        fastest=own.index(min(own)),
        busy=sum(budget[name] for name in BUSY),
        cores=sum(rank.processor for rank in ranks) / (len(ranks) * wall),
    )


def told_apart(ranks: Sequence[Interval]) -> list[Interval]:
    """Waiting and exchanging, where a device does both at once: whoever took least time for both waited for nobody."""
    least = min(rank.seconds[COMMUNICATION] for rank in ranks)
    apart = [{WAIT: rank.seconds[WAIT] + rank.seconds[COMMUNICATION] - least, COMMUNICATION: least} for rank in ranks]
    return [replace(rank, seconds={**rank.seconds, **both}) for rank, both in zip(ranks, apart, strict=True)]


class BudgetFile:
    """`budget.jsonl`: one line of JSON for each display; after a restart it goes on like the learning curve.

    Args:
        restart_step: lines of later steps are cut away, because those steps will be done again; None for a new file.
    """

    def __init__(self, path: str | Path, restart_step: int | None = None) -> None:
        self.path = Path(path).resolve()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = "" if restart_step is None or not self.path.is_file() else _lines_until(self.path, restart_step)
            write_atomically(self.path, kept.encode())
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the budget cannot be written: {describe_failure(error, self.path)}", where=str(self.path)
            ) from error

    def write(self, summary: Summary) -> None:
        """Add a line and hand it to the operating system at once."""
        self._file.write(json.dumps(_rounded(asdict(summary))) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class NullFile:
    """For ranks, and runs, that write none."""

    def write(self, summary: Summary) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Crowding:
    """Warns, once, where a rank's threads get less of their cores than they compute for: others are on them too.

    Threads wait for each other at the end of every product, spinning. One that has lost its core for a moment holds up
    all, and a step takes several times as long as on one thread.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def look(self, ranks: Sequence[Interval]) -> None:
        """At what the ranks did since the last display."""
        if self._threads < 2:
            return
        for number, rank in enumerate(ranks):
            busy = sum(rank.seconds[name] for name in BUSY)
            # Threads that have nothing to do use little of their cores too, but they lose none.
            lost = busy > _LONG_ENOUGH and rank.evictions > _MANY * busy
            if lost and rank.processor < _ENOUGH * self._threads * busy:
                self._warn(number, rank.processor / busy)
                return

    def _warn(self, number: int, cores: float) -> None:
        log.warning(
            "threads: rank %d computes with %d threads and gets %.1f cores: other programs use them too, and threads "
            "wait for each other. Cores of its own (taskset, the queueing system) or OMP_NUM_THREADS=1 make steps "
            "faster",
            *(number, self._threads, cores),
        )
        self._threads = 0


class Budget:
    """Asks all ranks at every display what they did since the last one, and tells it.

    Args:
        shown: whether the log gets the line.
        shared_by: how many ranks share each frame.
        threads: those that a rank computes with on cores of its own; 0 on another device.
    """

    def __init__(
        self,
        group: Group,
        intake: Intake,
        file: BudgetFile | NullFile,
        scalars: Scalars,
        shown: bool,
        shared_by: int = 1,
        threads: int = 0,
    ) -> None:
        self._shared_by, self._crowding = shared_by, Crowding(threads)
        self._group, self._intake, self._file, self._scalars, self._shown = group, intake, file, scalars, shown

    def begin(self, step: int) -> None:
        """The training begins after `step`."""
        self._group.phases.enter(DATA)
        self._mark(step, self._group.phases.totals())

    def show(self, step: int) -> None:
        """Tell where the time went since the last call. All ranks must call it."""
        totals = self._group.phases.totals()
        interval = Interval(
            {name: totals[name] - self._totals[name] for name in totals},
            self._intake.prepared - self._prepared,
            (self._intake.frames - self._frames) / self._shared_by,
            time.process_time() - self._processor,
            _evictions() - self._evictions,
        )
        steps = step - self._step
        self._mark(step, totals)
        ranks = self._group.all_gather_object(interval)
        if not self._group.phases.on_time:
            ranks = told_apart(ranks)
        summary = summarise(step, steps, time.time(), ranks)
        self._file.write(summary)
        self._scalars.add(step, summary.scalars())
        if self._shown:
            log.info(summary.line())
        self._crowding.look(ranks)

    def _mark(self, step: int, totals: dict[str, float]) -> None:
        self._step, self._totals = step, totals
        self._prepared, self._frames = self._intake.prepared, self._intake.frames
        self._processor, self._evictions = time.process_time(), _evictions()


def budget_path(disp_file: str) -> Path | None:
    """`budget.jsonl` beside `lcurve.out`, `x.budget.jsonl` beside `x.out`; None beside a device such as /dev/null."""
    curve = Path(disp_file)
    if curve.exists() and not curve.is_file():
        return None
    return curve.with_name("budget.jsonl" if curve.stem == "lcurve" else f"{curve.stem}.budget.jsonl")


def read_budget(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a budget file; one still being written is left out."""
    text = Path(path).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _evictions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _lines_until(path: Path, step: int) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return "".join(f"{line}\n" for line in lines if _step_of(line) <= step)


def _step_of(line: str) -> float:
    """The step of a line; infinity for anything else, so that it is cut away."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < 1e8 else round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
