"""What carries the messages between ranks: one file for each way, and the table from which one is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.group import Group

VARIABLE = "LOCKSTEP_GROUP"
ENGINES = ("solo", "horovod", "mpi", "torch")
"""In the order in which they are asked: the first that is usable carries the messages."""
_AUTO = "auto"


class Engine(Protocol):
    """What each module of this package offers. Loading one must be quick: heavy libraries wait for `connect`."""

    def usable(self, context: WorkerContext, device: str, environ: Mapping[str, str]) -> bool:
        """Whether this is the way to carry messages here, if the user does not ask for another."""

    def connect(self, context: WorkerContext, device: str, timeout: float) -> Group:
        """The group of all ranks. Raises UserError where they cannot form it."""


def choose(context: WorkerContext, device: str, environ: Mapping[str, str]) -> str:
    """The name of the engine that carries the messages: the one that LOCKSTEP_GROUP names, or the first usable."""
    wanted = environ.get(VARIABLE, _AUTO)
    if wanted not in (_AUTO, *ENGINES) or (wanted == "solo" and context.size > 1):
        named = ", ".join((_AUTO, *ENGINES[1:]))
        raise UserError(f"expected one of {named}", where=f"environment variable {VARIABLE}", value=wanted)
    if context.size > 1 and wanted != _AUTO:
        return wanted
    return next(name for name in ENGINES if load(name).usable(context, device, environ))


def load(name: str) -> Engine:
    return cast(Engine, importlib.import_module(f"lockstep.parallel.engines.{name}"))
