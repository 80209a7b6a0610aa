"""Scalars for TensorBoard, written by a thread of their own: the training only puts them into a queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from lockstep.errors import UserError
from lockstep.files import describe_failure
from lockstep.tasks import Metrics

log = logging.getLogger(__name__)

_Job = tuple[int, Callable[[], Mapping[str, float]]]
_PAUSE = 0.5
"""Seconds between two looks into the queue: waking up for every step would disturb the training more than writing."""


class TensorBoard:
    """Writes errors and learning rate every `frequency` steps.

    Turning tensors into numbers, numbers into records and records into bytes is left to the thread; all scalars of a
    step are one record.
    """

    def __init__(self, folder: str, frequency: int, purge_step: int | None = None) -> None:
        try:
            from tensorboard.compat.proto.summary_pb2 import Summary
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"TensorBoard cannot be loaded: {error}",
                where="training.tensorboard",
                value=True,
                remedy="pip install 'lockstep-dp[tensorboard]', or set training.tensorboard to false",
            ) from error
        self._summary = Summary
        try:
            self._writer: Any = SummaryWriter(folder, purge_step=purge_step)
        except OSError as error:
            raise UserError(
                f"cannot be written to: {describe_failure(error, Path(folder))}",
                where="training.tensorboard_log_dir",
                value=folder,
                remedy="name another folder, or set training.tensorboard to false",
            ) from error
        self._frequency = frequency
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockstep tensorboard", daemon=True)
        self._thread.start()

    def write(self, step: int, lr: float, metrics: Metrics) -> None:
        """Errors and learning rate of `step`, where they are due."""
        if step % self._frequency and step != 1:
            return
        self._jobs.put((step, lambda: {f"train/{n}": v for n, v in metrics.shown().items()} | {"train/lr": lr}))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Other numbers of `step`."""
        self._jobs.put((step, lambda: values))

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._closing.set()
        self._thread.join()
        self._writer.close()

    def _work(self) -> None:
        try:
            while not self._closing.wait(_PAUSE):
                self._drain()
            self._drain()
        except Exception as error:
            # A full disk must not end a training for the sake of its pictures.
            log.warning("TensorBoard gets no more scalars: %s", error)

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                step, values = self._jobs.get_nowait()
                record = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values().items()]
                self._writer.file_writer.add_summary(self._summary(value=record), step)


class NullScalars:
    """For runs, and ranks, without TensorBoard."""

    def write(self, step: int, lr: float, metrics: Metrics) -> None:
        """Do nothing."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
