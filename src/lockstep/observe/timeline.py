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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from lockstep.data import MicroBatch
from lockstep.errors import UserError
from lockstep.files import describe_failure
from lockstep.observe.clock import OwnClock, RemoteClock
from lockstep.observe.phases import COMMUNICATION, DATA, PHASES, WAIT
from lockstep.observe.profile import payload_size
from lockstep.parallel.group import Group

log = logging.getLogger(__name__)

Event = tuple[str, str, float, float, dict[str, Any]]
"""Track, name, beginning and duration in microseconds since the start of the timeline, details."""
Prepared = TypeVar("Prepared")

_TOPIC = "timeline"
_GEOMETRY = "geometry"
_NAMES = {DATA: "data wait", WAIT: "wait for other ranks"}
_TRACKS = (DATA, _GEOMETRY, *(name for name in PHASES if name not in (DATA, WAIT)))
_EXCHANGES = (COMMUNICATION, WAIT)
_BATCH = 2000
_INTERVAL = 1.0
_EVENTS = 2_000_000
_EVENTS_OF_A_RANK = 200_000
_TIME_FOR_OTHERS = 2.0


def events_per_rank(size: int) -> int:
    """How many events of each rank are kept: what viewers load, and what a long run may cost."""
    return min(_EVENTS_OF_A_RANK, max(_EVENTS // size, 1000))


class TimelineFile:
    """Rank 0's file, written by a thread. Events of a track must come in order."""

    def __init__(self, path: str, hosts: Sequence[str]) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the timeline cannot be written: {describe_failure(error, self.path)}", where=path
            ) from error
        self._separator = "[\n"
        self._tracks: dict[tuple[int, str], int] = {}
        self._last: set[int] = set()
        self._all_ended = threading.Event()
        self._size = len(hosts)
        for rank, host in enumerate(hosts):
            self._put({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({host})"}})
            self._put({"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}})
        self._file.flush()
        self._batches: SimpleQueue[tuple[int, Mapping[str, Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lockstep timeline", daemon=True)
        self._thread.start()

    def receive(self, rank: int, batch: dict[str, Any]) -> None:
        """Events of a rank; returns at once."""
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
                for event in batch["events"]:
                    self._event(rank, *event)
                self._file.flush()
            except OSError as error:
                log.warning("The timeline ends here: %s", describe_failure(error, self.path))
                return
            if batch["last"]:
                self._last.add(rank)
            if len(self._last) == self._size:
                self._all_ended.set()

    def _event(self, rank: int, track: str, name: str, began: float, lasted: float, details: dict[str, Any]) -> None:
        number = self._tracks.get((rank, track)) or self._new_track(rank, track)
        self._put({"name": name, "ph": "X", "pid": rank, "tid": number, "ts": began, "dur": lasted, "args": details})

    def _new_track(self, rank: int, track: str) -> int:
        number = self._tracks[rank, track] = 1 + sum(1 for known, _ in self._tracks if known == rank)
        place = 10 * _TRACKS.index(track.split()[0]) if track.split()[0] in _TRACKS else 1000
        for name, value in (("thread_name", {"name": track}), ("thread_sort_index", {"sort_index": place + number})):
            self._put({"name": name, "ph": "M", "pid": rank, "tid": number, "args": value})
        return number

    def _put(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event))
        self._separator = ",\n"


class Tracer:
    """Notes what this rank does, for a `with` block.

    Args:
        deliver: takes a batch of events and whether it is the last.
        zero: rank 0's time at which the timeline begins.
    """

    def __init__(
        self, group: Group, clock: OwnClock | RemoteClock, zero: float, deliver: Callable[[dict[str, Any]], None]
    ) -> None:
        self._progress, self._clock, self._zero, self._deliver = group.progress, clock, zero, deliver
        self._noted: deque[tuple[str, str, float, float, dict[str, Any]]] = deque()
        self._left = events_per_rank(group.size)
        self._ends: dict[str, float] = {}
        self._sent = time.perf_counter()

    def phase(self, name: str, began: float, ended: float) -> None:
        """A phase is over; exchanges come by `count`, with more details."""
        if name in _TRACKS and name not in _EXCHANGES:
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
            track = f"{_GEOMETRY} ({threading.current_thread().name.replace('_', ' ')})"
            self._note(track, _GEOMETRY, began, time.perf_counter(), {"micro-batch": batch.number})
            return prepared

        return noted

    def send(self, last: bool = False) -> None:
        """Hand over what was noted."""
        self._sent = time.perf_counter()
        events = [self._placed(*self._noted.popleft()) for _ in range(len(self._noted))]
        self._deliver({"events": events, "last": last})
        self._clock.ask()

    def _note(self, track: str, name: str, began: float, ended: float, details: dict[str, Any]) -> None:
        self._left -= 1
        if self._left > 0:
            self._noted.append((track, name, began, ended, details))
        elif self._left == 0:
            self._noted.append((track, "the timeline ends here: it holds no more events", ended, ended, details))

    def _placed(self, track: str, name: str, began: float, ended: float, details: dict[str, Any]) -> Event:
        """In rank 0's time. A better idea of the clock's offset must not let two events of a track overlap."""
        shift = self._clock.offset - self._zero
        first = round(max((began + shift) * 1e6, self._ends.get(track, 0.0)), 3)
        end = self._ends[track] = round(max((ended + shift) * 1e6, first), 3)
        return track, name, first, round(end - first, 3), details


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
