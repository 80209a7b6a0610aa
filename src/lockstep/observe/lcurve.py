"""The learning curve `lcurve.out`: one row per displayed step, in DeePMD-kit's columns and number formats."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np

from lockstep.errors import UserError
from lockstep.files import describe_failure, write_atomically

log = logging.getLogger(__name__)

CURVE = "curve"
"""Under this key a checkpoint has the last row before it."""

_NAN_NOTE = "# If there is no available reference data, rmse_*_{val,trn} will print nan\n"


class LearningCurve:
    """Writes the rows; after a restart it goes on as if the run had never stopped.

    Args:
        path: the file.
        columns: the names of the errors, with what heads their columns for validation and for training data where
            that is not the name with `_val` and `_trn`.
        validation: whether each row has errors of validation data too.
        restart_step: the step of the checkpoint that training goes on from; rows after it are cut away,
            because the steps they tell of will be done again. None begins a new file.
        last: the row that the checkpoint knows as the last one before it: a file without it is of another run.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str] | Mapping[str, tuple[str, str]],
        validation: bool,
        restart_step: int | None = None,
        last: str = "",
    ) -> None:
        # A link is followed, not replaced, when the file is rewritten.
        self.path = Path(path).resolve()
        self.columns = tuple(sorted(columns))
        given = columns if isinstance(columns, Mapping) else {}
        self._headings = [given.get(name, (f"{name}_val", f"{name}_trn")) for name in self.columns]
        self.validation = validation
        self._last = last
        try:
            self._file = self._open(restart_step)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, step: int, lr: float, train: Mapping[str, float], valid: Mapping[str, float] | None = None) -> None:
        """Add the row of `step` and hand it to the operating system at once."""
        assert (valid is not None) == self.validation, "the header says otherwise"
        self._last = _row(step, lr, [_cells(name, train, valid) for name in self.columns])
        try:
            self._file.write(self._last)
            self._file.flush()
        except OSError as error:
            raise self._failure(error) from error

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: by its last row the file is known again."""
        return {CURVE: self._last}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LearningCurve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, restart_step: int | None) -> TextIO:
        header = _header(self._headings, self.validation)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A device such as /dev/null must be written to, never renamed over.
        if restart_step is not None and self.path.is_file():
            write_atomically(self.path, (header + self._rows_until(restart_step, header)).encode())
            return self.path.open("a", encoding="utf-8")
        file = self.path.open("w", encoding="utf-8")
        file.write(header)
        file.flush()
        return file

    def _rows_until(self, restart_step: int, header: str) -> str:
        """The whole rows of the existing file up to `restart_step`."""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if header.startswith(text):
            return ""
        if not text.startswith(header):
            self._set_aside(text, "has other columns than this run")
            return ""
        # A row without its newline was cut short when the former run was killed.
        lines = text[len(header) :].split("\n")[:-1]
        kept = [f"{line}\n" for line in lines if _step_of(line) <= restart_step]
        if self._last and self._last not in kept:
            self._set_aside(text, "is of another run than the checkpoint")
            return ""
        return "".join(kept)

    def _set_aside(self, text: str, reason: str) -> None:
        """Keep a file under another name: rows of two kinds in one file cannot be read."""
        names = (f"{self.path.name}.old-{number}" for number in count(1))
        backup = next(path for name in names if not (path := self.path.with_name(name)).exists())
        write_atomically(backup, text.encode())
        log.warning("%s %s; it is kept as %s", self.path, reason, backup.name)

    def _failure(self, error: OSError) -> UserError:
        return UserError(
            f"the learning curve cannot be written: {describe_failure(error, self.path)}",
            where=str(self.path),
            remedy="make room or give the folder write permission, then continue with dp train --restart",
        )


class NullCurve:
    """The learning curve of the ranks that do not write one."""

    def write(self, step: int, lr: float, train: Mapping[str, float], valid: Mapping[str, float] | None = None) -> None:
        """Do nothing."""

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> NullCurve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def read_lcurve(path: str | Path) -> dict[str, np.ndarray]:
    """The columns of a learning curve by name, `step` as integers; of DeePMD-kit's files too."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read as a learning curve: {error}", where=str(path)) from error
    names: list[str] = []
    rows: list[list[float]] = []
    # What follows the last newline is a row still being written.
    for number, line in enumerate(lines[:-1], start=1):
        if line.startswith("#"):
            names = _names(line, names)
        elif line.strip():
            rows.append(_numbers(line, names, f"{path}, line {number}"))
    if not names:
        raise UserError("has no header line '# step ... lr', so it is not a learning curve", where=str(path))
    table = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    columns = {name: table[:, index].copy() for index, name in enumerate(names)}
    columns["step"] = columns["step"].astype(np.int64)
    return columns


def _names(comment: str, names: list[str]) -> list[str]:
    words = comment[1:].split()
    # DeePMD-kit repeats the header after each restart.
    return words if words[:1] == ["step"] else names


def _numbers(line: str, names: list[str], where: str) -> list[float]:
    try:
        row = [float(word) for word in line.split()]
    except ValueError as error:
        raise UserError(f"expected a row of numbers, found {line.strip()[:60]!r}", where=where) from error
    if len(row) != len(names):
        raise UserError(f"the row has {len(row)} numbers, the header names {len(names)} columns", where=where)
    if not row[0].is_integer():
        raise UserError(f"the step {row[0]} is not a whole number", where=where)
    return row


def _header(headings: Sequence[tuple[str, str]], validation: bool) -> str:
    names = [pair if validation else pair[1:] for pair in headings]
    cells = "".join("   " + " ".join(f"{name:>11s}" for name in pair) for pair in names)
    return f"# {'step':5s}{cells}   {'lr':8s}\n{_NAN_NOTE}"


def _cells(name: str, train: Mapping[str, float], valid: Mapping[str, float] | None) -> tuple[float, ...]:
    return (train[name],) if valid is None else (valid[name], train[name])


def _row(step: int, lr: float, errors: Sequence[tuple[float, ...]]) -> str:
    cells = "".join("   " + " ".join(f"{error:11.2e}" for error in pair) for pair in errors)
    return f"{step:7d}{cells}   {lr:8.1e}\n"


def _step_of(line: str) -> float:
    """The step of a row; infinity for anything else, so that it is cut away."""
    try:
        return int(line.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return float("inf")
