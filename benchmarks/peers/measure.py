"""Runs a program as a user would, and watches it from outside: learning curve, processor time, memory.

Nothing inside the program is touched or timed by itself, so programs that know nothing of each other compare.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY = 0.05
"""Seconds between two looks at the learning curve: few, because a program that has all cores waits for each of them."""
WEIGH_EVERY = 0.25
"""Seconds between two looks at the memory."""
TICK = 1 / os.sysconf("SC_CLK_TCK")
CURVE = "lcurve.out"


class RunError(RuntimeError):
    """A program that failed, or took too long; the message ends with the end of its log."""


@dataclass(frozen=True)
class Row:
    """A row of the learning curve: its step, and when it appeared, in seconds since the command was given.

    Attributes:
        processor: processor seconds that all processes of the run had used by then.
    """

    step: int
    seconds: float
    processor: float


@dataclass(frozen=True)
class Run:
    """What was seen of one run.

    Attributes:
        memory: peak of the largest process, in MB.
        memory_all: peak of all processes together, pages that they share counted in each, in MB.
    """

    rows: list[Row]
    seconds: float
    memory: float
    memory_all: float
    log: str

    @property
    def first_step(self) -> float:
        """Seconds from the command to the first row."""
        return self.rows[0].seconds

    def intervals(self, since: int, until: int | None = None) -> list[tuple[float, float]]:
        """Seconds and processor seconds of a step, for every two rows in turn from step `since` on."""
        chosen = [row for row in self.rows if row.step >= since and (until is None or row.step <= until)]
        return [
            (
                (after.seconds - before.seconds) / (after.step - before.step),
                (after.processor - before.processor) / (after.step - before.step),
            )
            for before, after in pairwise(chosen)
        ]


def watch(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    enough: Callable[[], bool] = lambda: False,
) -> Run:
    """Run a training in `folder` to its end, or to the first row at which there is `enough`; say what it took."""
    curve, log = folder / CURVE, folder / "log"
    rows: list[Row] = []
    largest = together = weighed = 0.0
    with started(command, folder, environment, log) as (process, began):
        running = True
        while running:
            running = process.poll() is None
            now = time.perf_counter() - began
            new = steps_of(curve)[len(rows) :]
            # When the file was written, which is more exact than when that was seen.
            rows += [Row(step, written_since(curve, began), processor_seconds(process.pid)) for step in new]
            if running and new and enough():
                return Run(rows, now, largest, together, log.read_text(errors="replace"))
            if now >= weighed:
                peak, total = memory(process.pid)
                largest, together, weighed = max(largest, peak), max(together, total), now + WEIGH_EVERY
            if now > timeout:
                raise RunError(f"{' '.join(command)}: not finished after {timeout:.0f} s\n{tail(log)}")
            time.sleep(LOOK_EVERY)
    if process.returncode or not rows:
        raise RunError(f"{' '.join(command)}: exit status {process.returncode}\n{tail(log)}")
    return Run(rows, now, largest, together, log.read_text(errors="replace"))


def call(command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float) -> str:
    """Run a command to its end and return what it wrote."""
    log = folder / f"{Path(command[0]).name}.{time.monotonic_ns()}.log"
    with started(command, folder, environment, log) as (process, _):
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunError(f"{' '.join(command)}: not finished after {timeout:.0f} s\n{tail(log)}") from None
    if process.returncode:
        raise RunError(f"{' '.join(command)}: exit status {process.returncode}\n{tail(log)}")
    return log.read_text(errors="replace")


@contextmanager
def started(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A process of its own session, and when it began; it and all that it started have ended afterwards."""
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process, began
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all its descendants, which launchers put into sessions of their own."""
    if process.poll() is not None:
        return
    pids = family(process.pid)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in pids[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for one in found:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                found += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its descendants so far, ended ones included."""
    ticks = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks * TICK


def memory(pid: int) -> tuple[float, float]:
    """Peak of the largest process of a family, and what all of them hold now, in MB."""
    peaks, totals = [0.0], 0.0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        sizes = {key: int(value) / 1024 for key, value in re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB", text, re.M)}
        peaks.append(sizes.get("VmHWM", 0.0))
        totals += sizes.get("VmRSS", 0.0)
    return max(peaks), totals


def written_since(file: Path, began: float) -> float:
    """Seconds between `began`, by the clock of measurements, and the last change of a file."""
    return file.stat().st_mtime - (time.time() - time.perf_counter() + began)


def steps_of(curve: Path) -> list[int]:
    """Steps of the whole rows that a learning curve has so far."""
    try:
        lines = curve.read_text(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def environment(threads: int = 1) -> dict[str, str]:
    """This process's environment without what would steer the programs, and with their number of threads."""
    steering = ("PYTHONPATH", "NUM_WORKERS", "VIRTUAL_ENV", "OPENBLAS_CORETYPE")
    kept = {k: v for k, v in os.environ.items() if k not in steering and not k.startswith(("DP_", "LOCKSTEP_", "TF_"))}
    names = ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS", "DP_INTER_OP_PARALLELISM_THREADS")
    return {**kept, **dict.fromkeys(names, str(threads))}


def pinned(command: Sequence[str], *cores: int) -> list[str]:
    """The command on these cores only; anywhere when one is negative."""
    if min(cores) < 0:
        return list(command)
    return ["taskset", "-c", ",".join(map(str, cores)), *command]


OWN_CORES = sorted(os.sched_getaffinity(0))
"""Cores that the whole benchmark may use, before `keep_off`."""


def cores_from(core: int, count: int) -> list[int]:
    """So many cores, that of `--core` first."""
    return [core, *(one for one in OWN_CORES if one != core)][:count]


def keep_off(cores: Sequence[int]) -> None:
    """Move this process to the other cores, where there are any: watching must not take the watched one's time."""
    others = os.sched_getaffinity(0) - set(cores)
    if others:
        os.sched_setaffinity(0, others)


def about_machine() -> dict[str, Any]:
    """Where and when a measurement was made."""
    found = re.findall(r"^(model name|cpu family|model)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor = dict(reversed(found))
    # Clouds leave little of a processor's name; the family tells its generation.
    name = (
        "{model name} (family {cpu family}, model {model})".format_map(processor) if len(processor) == 3 else "unknown"
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "processor": name,
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
