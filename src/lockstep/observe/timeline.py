"""The timeline: what every rank did when, in one file that chrome://tracing and Perfetto show.

Every rank notes its phases, its exchanges and the work of its loader threads, and sends them to rank 0 over the side
channel about once a second; a thread of rank 0 writes them. The file is in the JSON array format of trace events, in
which the closing bracket may be missing: it can be loaded at any moment, also after a crash.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from lockstep.data import MicroBatch
from lockstep.errors import UserError
from lockstep.files import describe_failure
from lockstep.observe.clock import OwnClock, RemoteClock
from lockstep.observe.profile import payload_size
from lockstep.parallel.group import Group
from lockstep.phases import COMMUNICATION, DATA, GEOMETRY, PHASES, WAIT

log = logging.getLogger(__name__)

Event = tuple[str, str, float, float, dict[str, Any]]
"""Track, name, beginning and end by this rank's clock, details."""
Prepared = TypeVar("Prepared")

_TOPIC = "timeline"
_NAMES = {DATA: "data wait", WAIT: "wait for other ranks"}
_TRACKS = tuple(name for name in PHASES if name != WAIT)
_EXCHANGES = (COMMUNICATION, WAIT)
_SEPARATOR = ",\n"
_SHORTEST = 10e-6
"""Seconds; shorter phases are left out, they would be half of all events and cannot be seen."""
_BATCH = 2000
_INTERVAL = 1.0
_EVENTS = 2_000_000
_EVENTS_OF_A_RANK = 200_000
_TIME_FOR_OTHERS = 2.0


def events_per_rank(size: int) -> int:
    """How many events of each rank are kept: what viewers load, and what a long run may cost."""
    return min(_EVENTS_OF_A_RANK, max(_EVENTS // size, 1000))


class TimelineFile:
    """Rank 0's file, written by a thread. The ranks send text that is ready to be written."""

    def __init__(self, path: str, hosts: Sequence[str]) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the timeline cannot be written: {describe_failure(error, self.path)}", where=path
            ) from error
        self._separator = "[\n"
        self._last: set[int] = set()
        self._all_ended = threading.Event()
        self._size = len(hosts)
        for rank, host in enumerate(hosts):
            self._put(_metadata("process_name", rank, {"name": f"rank {rank} ({host})"}))
            self._put(_metadata("process_sort_index", rank, {"sort_index": rank}))
        self._file.flush()
        self._batches: SimpleQueue[tuple[int, dict[str, Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lockstep timeline", daemon=True)
        self._thread.start()

    def receive(self, rank: int, batch: dict[str, Any]) -> None:
        """Events of a rank, as text; returns at once."""
        self._batches.put((rank, batch))

    def close(self, patience: float) -> None:
        """Wait for the last events of all ranks, but not for long, and end the file."""
        self._all_ended.wait(patience)
        self._batches.put(None)
        self._thread.join()
        self._file.write("\n]\n")
        self._file.close()

    def _work(self) -> None:
        while (item := self._batches.get()) is not None:
            rank, batch = item
            try:
                self._put(batch["text"])
                self._file.flush()
            except OSError as error:
                log.warning("The timeline ends here: %s", describe_failure(error, self.path))
                return
            if batch["last"]:
                self._last.add(rank)
            if len(self._last) == self._size:
                self._all_ended.set()

    def _put(self, text: str) -> None:
        if text:
            self._file.write(self._separator + text)
            self._separator = _SEPARATOR


def _metadata(name: str, rank: int, value: dict[str, Any], track: int = 0) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": rank, "tid": track, "args": value})


class Tracer:
    """Notes what this rank does, for a `with` block.

    Args:
        deliver: takes a batch: the text of its events, and whether it is the last.
        zero: rank 0's time at which the timeline begins.
    """

    def __init__(
        self, group: Group, clock: OwnClock | RemoteClock, zero: float, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        self._rank, self._progress = group.rank, group.progress
        self._clock, self._zero, self._deliver = clock, zero, deliver
        self._noted: deque[Event] = deque()
        self._tracks: dict[str, int] = {}
        self._left = events_per_rank(group.size)
        self._ends: dict[str, float] = {}
        self._sent = time.perf_counter()

    def phase(self, name: str, began: float, ended: float) -> None:
        """A phase is over; exchanges come by `count`, with more details."""
        if ended - began > _SHORTEST and name in _TRACKS and name not in _EXCHANGES:
            self._note(name, _NAMES.get(name, name), began, ended, {"step": self._progress.step})
        if ended - self._sent > _INTERVAL or len(self._noted) > _BATCH:
            self.send()

    def count(self, routine: str, payload: Any, began: float, waited: float, ended: float) -> None:
        """See `Meter`."""
        details = {"step": self._progress.step, "for": self._progress.phase}
        if waited > 0:
            self._note(COMMUNICATION, _NAMES[WAIT], began, began + waited, {**details, "routine": routine})
        details["bytes"] = payload_size(payload)
        self._note(COMMUNICATION, routine, began + waited, ended, details)

    def traced(self, prepare: Callable[[MicroBatch], Prepared]) -> Callable[[MicroBatch], Prepared]:
        """`prepare`, with a note of each call, on a track for each thread that calls it."""

        def noted(batch: MicroBatch) -> Prepared:
            began = time.perf_counter()
            prepared = prepare(batch)
            track = f"{GEOMETRY} ({threading.current_thread().name.replace('_', ' ')})"
            self._note(track, GEOMETRY, began, time.perf_counter(), {"micro-batch": batch.number})
            return prepared

        return noted

    def send(self, last: bool = False) -> None:
        """Hand over what was noted."""
        self._sent = time.perf_counter()
        lines = [self._line(*self._noted.popleft()) for _ in range(len(self._noted))]
        self._deliver({"text": _SEPARATOR.join(lines), "last": last})
        self._clock.ask()

    def _note(self, track: str, name: str, began: float, ended: float, details: dict[str, Any]) -> None:
        self._left -= 1
        if self._left > 0:
            self._noted.append((track, name, began, ended, details))
        elif self._left == 0:
            self._noted.append((track, "the timeline ends here: it holds no more events", ended, ended, details))

    def _line(self, track: str, name: str, began: float, ended: float, details: dict[str, Any]) -> str:
        """An event in rank 0's time. A better idea of the clock's offset must not let two of a track overlap."""
        number = self._tracks.get(track)
        announced = "" if number else self._announced(track)
        shift = self._clock.offset - self._zero
        first = round(max((began + shift) * 1e6, self._ends.get(track, 0.0)), 3)
        end = self._ends[track] = round(max((ended + shift) * 1e6, first), 3)
        return (
            f'{announced}{{"name": "{name}", "ph": "X", "pid": {self._rank}, "tid": {self._tracks[track]}, '
            f'"ts": {first:.3f}, "dur": {end - first:.3f}, "args": {json.dumps(details)}}}'
        )

    def _announced(self, track: str) -> str:
        """Names a new track, and gives it its place."""
        number = self._tracks[track] = len(self._tracks) + 1
        place = 10 * _TRACKS.index(track.split()[0]) + number
        name = _metadata("thread_name", self._rank, {"name": track}, number)
        return _SEPARATOR.join([name, _metadata("thread_sort_index", self._rank, {"sort_index": place}, number), ""])


class NullTracer:
    """For runs without a timeline."""

    def traced(self, prepare: Callable[[MicroBatch], Prepared]) -> Callable[[MicroBatch], Prepared]:
        return prepare


class Timeline:
    """A timeline for a `with` block, which all ranks enter together; it gives each rank its tracer."""

    def __init__(self, group: Group, path: str) -> None:
        self._group, self._path = group, path
        self._file: TimelineFile | None = None

    def __enter__(self) -> Tracer:
        group, channel = self._group, self._group.channel
        hosts = group.all_gather_object(socket.gethostname())
        clock: OwnClock | RemoteClock
        if group.rank == 0:
            self._file = TimelineFile(self._path, hosts)
            channel.on(_TOPIC, self._file.receive)
            clock = OwnClock(channel)
        else:
            clock = RemoteClock(channel)
        group.barrier()
        clock.settle()
        zero = group.all_gather_object(time.perf_counter())[0]
        self._tracer = Tracer(group, clock, zero, self._deliver)
        group.phases.listeners += (self._tracer.phase,)
        group.meters += (self._tracer,)
        return self._tracer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group, tracer = self._group, self._tracer
        group.meters = tuple(meter for meter in group.meters if meter is not tracer)
        group.phases.listeners = tuple(x for x in group.phases.listeners if x != tracer.phase)
        tracer.send(last=True)
        if self._file is not None:
            self._file.close(_TIME_FOR_OTHERS if error is None else _TIME_FOR_OTHERS / 4)
            log.info("Timeline: %s", self._path)

    def _deliver(self, batch: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.receive(0, batch)
        else:
            self._group.channel.send(_TOPIC, batch)
