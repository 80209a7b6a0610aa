"""The communication profile: what a rank exchanged, how often, how large and for how long.

Written in the shape of mpitrace's `mpi_profile.<job>.<rank>`, but counted by this program itself: nothing has to be
preloaded, and gloo and NCCL are counted like MPI.
"""

from __future__ import annotations

import json
import logging
import pickle
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.files import describe_failure
from lockstep.observe.profile_text import profile_text
from lockstep.parallel.group import Group
from lockstep.parallel.watch.ending import before_exit

log = logging.getLogger(__name__)


@dataclass
class Tally:
    """Exchanges of one routine and of sizes between two powers of two."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    wait: float = 0.0

    def add(self, size: int, seconds: float, wait: float) -> None:
        self.calls += 1
        self.bytes += size
        self.seconds += seconds
        self.wait += wait


@dataclass
class Own:
    """What a rank can tell by itself.

    Attributes:
        communication: seconds in exchanges, `wait` of them before all ranks had come.
        memory: the largest resident set, in megabytes.
    """

    host: str
    communication: float
    wait: float
    elapsed: float
    user: float
    system: float
    memory: float


@dataclass
class Record:
    """A whole profile; the JSON file holds it.

    Attributes:
        complete: false when the run ended early; the other ranks are then not known.
        routines: for each routine its tallies, from small to large messages.
        ranks: what each rank told; only the own one where the run ended early.
    """

    job: str
    rank: int
    size: int
    backend: str
    complete: bool
    own: Own
    routines: dict[str, list[Tally]]
    ranks: list[Own] = field(default_factory=list)


class Profile:
    """Counts the exchanges of a group for a `with` block, and writes two files at the end of it, however it ends.

    Args:
        job: in the file names; the same on all ranks.
        folder: where the files go.
    """

    def __init__(self, group: Group, job: str, folder: Path) -> None:
        self._group, self._job, self._folder = group, job, folder
        self._tallies: dict[str, dict[int, Tally]] = {}
        self._written = False

    def __enter__(self) -> Profile:
        self._began = time.perf_counter()
        self._forget: Callable[[], None] = before_exit(lambda: self._write(None))
        self._group.meters += (self,)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.meters = tuple(meter for meter in self._group.meters if meter is not self)
        # After an error the others may be anywhere: nothing more is exchanged with them.
        self._write(self._group.all_gather_object(self._own()) if error is None else None)
        self._forget()

    def count(self, routine: str, payload: Any, began: float, waited: float, ended: float) -> None:
        """See `Meter`."""
        size = payload_size(payload)
        sizes = self._tallies.setdefault(routine, {})
        step = (size - 1).bit_length() if size else -1
        sizes.setdefault(step, Tally()).add(size, ended - began, waited)

    def record(self, ranks: list[Own] | None) -> Record:
        """The profile up to now."""
        routines = {name: [sizes[step] for step in sorted(sizes)] for name, sizes in sorted(self._tallies.items())}
        own = self._own()
        return Record(
            job=self._job,
            rank=self._group.rank,
            size=self._group.size,
            backend=self._group.name,
            complete=ranks is not None,
            own=ranks[self._group.rank] if ranks else own,
            routines=routines,
            ranks=ranks or [own],
        )

    def _own(self) -> Own:
        tallies = [tally for sizes in self._tallies.values() for tally in sizes.values()]
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Own(
            host=socket.gethostname(),
            communication=sum(tally.seconds for tally in tallies),
            wait=sum(tally.wait for tally in tallies),
            elapsed=time.perf_counter() - self._began,
            user=used.ru_utime,
            system=used.ru_stime,
            memory=used.ru_maxrss / 1024,
        )

    def _write(self, ranks: list[Own] | None) -> None:
        if self._written:
            return
        self._written = True
        record = self.record(ranks)
        path = self._folder / f"mpi_profile.{self._job}.{self._group.rank}"
        try:
            path.write_text(profile_text(record), encoding="utf-8")
            path.with_name(f"{path.name}.json").write_text(
                json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8"
            )
        except OSError as error:
            log.warning("The communication profile cannot be written: %s", describe_failure(error, path))
        else:
            log.info("Communication profile: %s", path)


def payload_size(payload: Any) -> int:
    """Bytes that a rank puts into an exchange."""
    if payload is None:
        return 0
    with suppress(AttributeError):
        return int(payload.numel() * payload.element_size())
    return len(pickle.dumps(payload))
