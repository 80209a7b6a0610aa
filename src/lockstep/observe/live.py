"""A live progress bar for people at a terminal. In a pipe or a batch job there is none, only log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task


class NullBar:
    """No progress bar."""

    def begin(self, step: int, numb_steps: int) -> None:
        """Do nothing."""

    def update(self, step: int) -> None:
        """Do nothing."""

    def note(self, train: Mapping[str, float], valid: Mapping[str, float] | None) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Bar(NullBar):
    """Progress, speed and time left of a training in the terminal's last line, below the log."""

    def __init__(self) -> None:
        self._line = BottomLine("train", "step")

    def begin(self, step: int, numb_steps: int) -> None:
        self._line.start(step, numb_steps)

    def update(self, step: int) -> None:
        self._line.show(completed=step)

    def note(self, train: Mapping[str, float], valid: Mapping[str, float] | None) -> None:
        shown: Mapping[str, Any] = valid or train
        force = shown.get("rmse_f", shown.get("mae_f"))
        self._line.show(note="" if force is None else f"force error {force:.3g} eV/Å")

    def end(self) -> None:
        self._line.stop()


class TaskBar:
    """Progress of other work than training, for as long as the `with` block lasts."""

    def __init__(self, task: str, total: int, unit: str) -> None:
        self._line, self._total = BottomLine(task, unit.removesuffix("s")), total
        self._done = 0

    def advance(self, count: int) -> None:
        self._done += count
        self._line.show(completed=self._done)

    def __enter__(self) -> TaskBar:
        self._line.start(0, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.stop()


class BottomLine:
    """The terminal's last line. While it is there, the log is printed above it, whole lines at a time."""

    def __init__(self, task: str, unit: str) -> None:
        self._task, self._unit = task, unit
        self._progress: Progress | None = None

    def start(self, done: int, total: int) -> None:
        """Draw the line, and lead the log around it."""
        self._progress = _make_progress(self._unit)
        self._progress.add_task(self._task, total=total, completed=done, note="")
        self._redirect(partial(_print_above, self._progress.console))
        self._progress.start()

    def show(self, **fields: Any) -> None:
        """Change what the line shows."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **fields)

    def stop(self) -> None:
        """Wipe the line; the log goes on as before. Does nothing when there is no line."""
        if self._progress is not None:
            self._progress.stop()
            self._redirect(None)
            self._progress = None

    def _redirect(self, write: Callable[[str], None] | None) -> None:
        for handler in logging.getLogger("lockstep").handlers:
            if hasattr(handler, "write_through"):
                handler.write_through(write)


def make_bar(visible: bool) -> Bar | NullBar:
    """A bar where somebody can see it: on the rank that shows, when the log goes to a terminal."""
    return Bar() if visible and sys.stderr.isatty() else NullBar()


def _make_progress(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Visible(Console):
        """Leaves the cursor alone: a process that is killed could not bring it back."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(describe_speed(task.finished_speed or task.speed, unit), style="progress.data.speed")

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(describe_left(task.time_remaining), style="progress.remaining")

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        Speed(Column(no_wrap=True)),
        Left(Column(no_wrap=True)),
        TextColumn("{task.fields[note]}"),
        console=Visible(stderr=True, highlight=False),
        refresh_per_second=4,
        transient=True,
        expand=True,
    )


def _print_above(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def describe_speed(speed: float | None, unit: str) -> str:
    """Units a second, or seconds a unit where that is the larger number."""
    if not speed:
        return ""
    return f"{speed:.3g} {unit}/s" if speed >= 1 else f"{1 / speed:.3g} s/{unit}"


def describe_left(seconds: float | None) -> str:
    """The time left, once it can be told."""
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"
