"""Saving behind the training's back: a step waits for a copy of its tensors, never for the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lockstep.checkpoint.format import Frozen, freeze
from lockstep.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds that a run which ends early waits for the checkpoint that is being written."""


class BackgroundStore:
    """Writes the checkpoints of a `CheckpointStore` in a thread of its own, one at a time.

    At most one copy of the state is held: a checkpoint that comes due before the one before it is on the disk waits
    for that. An error in the thread is raised by the next call of any method.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Begin to write the checkpoint of `step`, of everything as it is now."""
        self.wait()
        frozen = freeze(step, tensors, info)
        self._thread = threading.Thread(target=self._write, args=(frozen,), name="lockstep checkpoint", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong since the last call, if anything did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Return when everything is on the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def close(self) -> None:
        """Give a checkpoint that is being written some time to be finished; for a run that ends early."""
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _write(self, frozen: Frozen) -> None:
        try:
            path = self._store.write(frozen)
        except BaseException as error:
            self._error = error
        else:
            log.info("Saved model to %s", path)
