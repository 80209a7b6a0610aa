"""What a rank does when something goes wrong on it: say so, tell the others, and end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from lockstep.errors import UserError
from lockstep.parallel.group import Group
from lockstep.parallel.watch.watch import STOPPING

log = logging.getLogger("lockstep.parallel.watch.faults")

EXIT_USER = 2


EXIT_STOPPED = 128 + signal.SIGTERM


class Terminated(BaseException):
    """A request to end now (a signal), raised in the main thread so that files are left whole."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Stopped(BaseException):
    """All ranks have agreed to stop because a signal asked for it, and have saved."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped by a signal after step {step}")


@contextmanager
def guarded(group: Group) -> Iterator[None]:
    """Runs the training; an error on this rank ends all ranks, with the reason, rank and step in the log.

    In a single process, errors pass through to the caller. SIGTERM and SIGUSR1 end the run with its next step and exit
    code 143, everywhere; where there is no step to come, or at the second such signal, at once.
    """
    with _termination_as_error(group):
        try:
            yield
        except Stopped as stopped:
            log.warning("A signal asked this run to stop: it has saved step %d, and ends", stopped.step)
            group.close()
            raise SystemExit(EXIT_STOPPED) from stopped
        except BaseException as error:
            if group.size > 1:
                _end_all(group, error)
            if isinstance(error, Terminated):
                log.error("%s in step %d (%s)", error, group.progress.step, group.progress.phase)
                raise SystemExit(exit_code(error)) from error
            raise


def exit_code(error: BaseException) -> int:
    """What the process answers to its launcher: never 0 for an error."""
    if isinstance(error, UserError):
        return EXIT_USER
    if isinstance(error, Terminated):
        return EXIT_STOPPED
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
        return error.code
    return 1


def ranks_where(group: Group, flag: bool) -> list[int]:
    """The ranks on which `flag` is true; the same answer everywhere, so that all of them can act on it."""
    return [rank for rank, value in enumerate(group.all_gather_object(bool(flag))) if value]


def _end_all(group: Group, error: BaseException) -> NoReturn:
    where = f"rank {group.rank} in step {group.progress.step} ({group.progress.phase})"
    if isinstance(error, UserError):
        # All ranks often fail for the same reason: rank 0 says it once for all.
        group.give_up(str(error), exit_code(error))
        log.error("%s: %s", where, error)
    elif isinstance(error, Terminated | KeyboardInterrupt | SystemExit):
        log.error("%s: %s", where, _short(error))
    else:
        log.error("%s: %s", where, _short(error), exc_info=error)
    group.abort(_short(error), exit_code(error))


def _short(error: BaseException) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextmanager
def _termination_as_error(group: Group) -> Iterator[None]:
    progress = group.progress

    def handle(number: int, frame: FrameType | None) -> None:
        if progress.step == 0 or progress.stop_signal:
            raise Terminated(number)
        progress.stop_signal = number
        name = signal.Signals(number).name
        log.info("%s: the run saves and ends after step %d; a second one ends it at once", name, progress.step)

    before = {number: signal.signal(number, handle) for number in STOPPING}
    # The main thread does not see a signal while it sits in an exchange; the watch's thread does.
    wake = signal.set_wakeup_fd(group.channel.wake_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wake)
        for number, handler in before.items():
            signal.signal(number, handler)
