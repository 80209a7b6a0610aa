"""Errors made for people: where, what value, why it is wrong, and what to do about it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNSET = object()


class UserError(ValueError):
    """Something the user can put right: a file, an option, a value.

    The command line prints it without a traceback and ends with exit code 2.

    Attributes:
        where: the option's dotted path into the input file, the command-line option, or the file concerned.
        value: the value found there, when there is one worth showing.
        reason: why it cannot be used.
        remedy: what the user can do.
        told: whether the user has been told already, by this worker or by another one.
    """

    told = False

    def __init__(self, reason: str, *, where: str = "", value: object = _UNSET, remedy: str = "") -> None:
        self.where, self.value, self.reason, self.remedy = where, value, reason, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        head = self.where
        if self.value is not _UNSET:
            head = f"{head} = {_short(self.value)}" if head else _short(self.value)
        lines = [f"{head}: {self.reason}" if head else self.reason]
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(_clipped(line) for text in lines for line in text.splitlines() or [""])


class InputError(UserError):
    """A mistake in the input file; `where` is the dotted path of the key."""


class DataError(UserError):
    """Training data that cannot be used; `where` is the file."""


class CheckpointError(UserError):
    """A checkpoint or model file that cannot be used; `where` is the file."""


class ForeignModelError(CheckpointError):
    """A model that only DeePMD-kit's classes can evaluate; `where` is the file."""


CONTENT_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What is raised where content is taken apart that is not what it should be."""


@contextmanager
def taken_apart(where: str | Path | None, remedy: str = "take an earlier one, or write it anew") -> Iterator[None]:
    """Whatever goes wrong within is the fault of what the file holds, and is told so; without a file it is nobody's."""
    try:
        yield
    except UserError:
        raise
    except CONTENT_ERRORS as error:
        if where is None:
            raise
        raise CheckpointError(
            f"its contents cannot be understood: {in_one_line(error)}", where=str(where), remedy=remedy
        ) from error


def in_one_line(error: BaseException) -> str:
    """What an error of a library says, short enough for a screen."""
    if isinstance(error, KeyError):
        return f"there is no {_short(error.args[0] if error.args else '')}"
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return _clipped(line, 200)


def _clipped(line: str, limit: int = 600) -> str:
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _short(value: object, limit: int = 120) -> str:
    return _clipped(repr(value), limit)
