"""The end of a process that cannot wait for the others any more."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import NoReturn

from lockstep.parallel.watch import witness

EXIT_LOST = 1

_last_acts: list[Callable[[], None]] = []


def before_exit(act: Callable[[], None]) -> Callable[[], None]:
    """Have `act` called, quickly, should this process end by `exit_now`; call what is returned to take it back."""
    _last_acts.append(act)
    return lambda: _last_acts.remove(act)


def exit_now(code: int) -> NoReturn:
    """Ends this process without the goodbyes of torch or MPI, which would wait for ranks that are gone."""
    witness.dismiss()
    closing = threading.Thread(target=_close_files, daemon=True)
    closing.start()
    closing.join(1.0)
    os._exit(code)


def _close_files() -> None:
    for act in _last_acts:
        with contextlib.suppress(Exception):
            act()
    logging.shutdown()
