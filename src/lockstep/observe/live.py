"""A live progress bar for people at a terminal. In a pipe or a batch job there is none, only log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any


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
    """Progress, speed and time left in the terminal's last line, below the log."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("[bold]train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            TextColumn("{task.fields[errors]}"),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
        self._first = 0

    def begin(self, step: int, numb_steps: int) -> None:
        self._first = step
        self._task = self._progress.add_task("train", total=numb_steps, completed=step, speed="", errors="")
        self._handlers = [h for h in logging.getLogger("lockstep").handlers if hasattr(h, "write_through")]
        for handler in self._handlers:
            handler.write_through(self._print)
        self._progress.start()

    def update(self, step: int) -> None:
        task = self._progress.tasks[self._task]
        elapsed = task.elapsed or 0.0
        speed = f"{(step - self._first) / elapsed:.1f} step/s" if elapsed > 1 else ""
        self._progress.update(self._task, completed=step, speed=speed)

    def note(self, train: Mapping[str, float], valid: Mapping[str, float] | None) -> None:
        shown: Mapping[str, Any] = valid or train
        force = shown.get("rmse_f", shown.get("mae_f"))
        self._progress.update(self._task, errors=f"force error {force:.3g} eV/A" if force is not None else "")

    def end(self) -> None:
        self._progress.stop()
        for handler in self._handlers:
            handler.write_through(None)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def make_bar(visible: bool) -> Bar | NullBar:
    """A bar where somebody can see it: on the rank that shows, when the log goes to a terminal."""
    return Bar() if visible and sys.stderr.isatty() else NullBar()
