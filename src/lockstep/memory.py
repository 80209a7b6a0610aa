"""How much memory a process keeps for itself, and how much it may use for remembering."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_UNITS = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40}
"""Powers of two for Slurm's suffixes; it means megabytes where there is none."""


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next step.

    By default it returns large blocks to the system at once, and a step of a megabyte-sized network spends a tenth
    of its time having the same pages zeroed and mapped again.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_M_TOP_PAD, 64 << 20)


@dataclass(frozen=True)
class Machine:
    """Where this process finds its limits; other places in tests.

    Attributes:
        cgroups: where control groups are mounted.
        membership: the list of control groups that the process is in.
        environ: of which Slurm's variables count.
    """

    cgroups: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")
    environ: Mapping[str, str] | None = None


def free_memory(local_ranks: int = 1, machine: Machine | None = None) -> int:
    """Bytes of memory that this process may still take, when `local_ranks` like it share the node.

    The least of what is free on the node, what the job's control groups and Slurm leave to it, and what the limit of
    the process itself (`ulimit -v`) does.
    """
    machine = machine or Machine()
    environ = os.environ if machine.environ is None else machine.environ
    shared = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_slurm(environ), *_cgroups(machine)]
    return max(0, min(min(shared) // max(1, local_ranks), *_own_limit()))


def _own_limit() -> list[int]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return [1 << 62]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return [limit - pages * os.sysconf("SC_PAGE_SIZE")]


def _slurm(environ: Mapping[str, str]) -> list[int]:
    """What Slurm has reserved on this node for the job; zero there stands for all of the node."""
    node, cpu = (_slurm_bytes(environ.get(f"SLURM_MEM_PER_{item}", "")) for item in ("NODE", "CPU"))
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    limits = [node, cpu * int(cpus) if cpus.isdecimal() else 0]
    return [limit for limit in limits if limit > 0]


def _slurm_bytes(text: str) -> int:
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    return int(digits) << _UNITS[unit] if digits.isdecimal() and unit in _UNITS else 0


def _cgroups(machine: Machine) -> Iterator[int]:
    """What every control group that the process is in, and every one around these, leaves to it."""
    try:
        lines = machine.membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from _levels(machine.cgroups, path, "memory.max", "memory.current", "inactive_file")
            # Both versions may be mounted, the second one below the first.
            yield from _levels(machine.cgroups / "unified", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _levels(machine.cgroups / "memory", path, *files)


def _levels(root: Path, path: str, limit: str, usage: str, cached: str) -> Iterator[int]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts) + 1):
        folder = root.joinpath(*parts[:depth])
        allowed, used = _number(folder / limit), _number(folder / usage)
        if allowed is not None:
            # Files in the page cache count as used, but make way for whoever needs the memory.
            yield max(0, allowed - max(0, (used or 0) - _statistic(folder / "memory.stat", cached)))


def _number(file: Path) -> int | None:
    """The number in a file; None where there is none, as where the limit is `max`."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _statistic(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
