"""`dp`, with a fault on one rank: FAULT="KIND PLACE RANK [ATTEMPTS]" in the environment says which, where and on whom.

Kinds: kill, term, usr1, stop (the signals), twice (SIGTERM, and again), raise (an error in Python), loss and gradient
(one that is not finite), read (a frame that cannot be read), slow (twelve seconds in which nothing happens). Places:
start (while the data are surveyed), step (the eighth), saving (the second checkpoint), validating (the third time).
FAULT_FILE gets the time of the fault. RANK may be "all".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import lockstep.checkpoint.store as checkpoint_module
import lockstep.files
from lockstep.checkpoint.store import NullStore
from lockstep.cli.main import main
from lockstep.data import DataSet
from lockstep.parallel import launchers
from lockstep.tasks.energy.loss import EnergyLoss
from lockstep.tasks.energy.survey import Survey
from lockstep.training.loop import Trainer
from lockstep.training.validation import Validator

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "usr1": signal.SIGUSR1}
AT = {"start": 1, "step": 8, "saving": 2, "validating": 3}


def break_down(kind: str) -> None:
    Path(os.environ["FAULT_FILE"]).write_text(repr(time.time()))
    if kind == "raise":
        raise RuntimeError("a fault on purpose")
    if kind == "slow":
        time.sleep(12)
        return
    if kind == "read":
        raise OSError(5, "Input/output error")
    for number in [signal.SIGTERM] * 2 if kind == "twice" else [SIGNALS[kind]]:
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    # A signal with a handler is handled a moment later.
    time.sleep(0.2)


def before(owner: type, name: str, act: Callable[[], None], at: int) -> None:
    """Let `act` happen before the call number `at` (from 1) of a method."""
    method, calls = getattr(owner, name), count(1)

    def replaced(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at:
            act()
        return method(*arguments, **options)

    setattr(owner, name, replaced)


def prepare(kind: str, place: str, rank: int) -> None:
    def act() -> None:
        break_down(kind)

    if kind in ("loss", "gradient"):
        spoil_loss(AT["step"], kind)
    elif kind == "read":
        before(Trainer, "step", lambda: before(DataSet, "read", act, 1), AT["step"])
    elif place == "start":
        before(Survey, "combine", act, AT[place])
    elif place == "step":
        before(Trainer, "step", act, AT[place])
    elif place == "validating":
        before(Validator, "__call__", act, AT[place])
    elif rank:
        before(NullStore, "save", act, AT["saving"])
    else:
        fail_while_writing(act)


def fail_while_writing(act: Callable[[], None]) -> None:
    """With half of the second checkpoint on the disk."""
    calls = count(1)

    def write(path: Path, data: bytes, owner: str = "") -> None:
        if path.name.startswith("model.ckpt-") and next(calls) == AT["saving"]:
            path.with_name(f".{path.name}.{os.getpid()}.tmp").write_bytes(data[: len(data) // 2])
            act()
        lockstep.files.write_atomically(path, data, owner)

    checkpoint_module.write_atomically = write


def spoil_loss(step: int, kind: str) -> None:
    """A label of this rank's micro-batch of `step` is so large that its square is not a number; or the loss is a number
    as any other, and its derivative is not."""
    method, calls = EnergyLoss.__call__, count(1)

    def loss(self: EnergyLoss, prediction: Any, labels: Any, *rest: Any) -> Any:
        # Validation asks for losses too, though not before the first display.
        import torch

        if torch.is_grad_enabled() and next(calls) == step:
            Path(os.environ["FAULT_FILE"]).write_text(repr(time.time()))
            if kind == "gradient":
                terms = method(self, prediction, labels, *rest)
                return replace(terms, total=terms.total + (0 * prediction.energy.sum()).abs().sqrt())
            labels = {**labels, "force": torch.full_like(labels["force"], 1e200)}
        return method(self, prediction, labels, *rest)

    EnergyLoss.__call__ = loss  # type: ignore[method-assign]


if __name__ == "__main__":
    fault, where, which, *attempts = os.environ["FAULT"].split()
    context = launchers.detect(os.environ)
    if (which == "all" or context.rank == int(which)) and context.attempt < int(attempts[0] if attempts else 1):
        prepare(fault, where, context.rank)
    sys.argv[0] = "dp"
    sys.exit(main())
