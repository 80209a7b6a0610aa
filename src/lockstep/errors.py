"""Errors made for people: where, what value, why it is wrong, and what to do about it."""

from __future__ import annotations

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
        return "\n".join(lines)


class InputError(UserError):
    """A mistake in the input file; `where` is the dotted path of the key."""


class DataError(UserError):
    """Training data that cannot be used; `where` is the file."""


class CheckpointError(UserError):
    """A checkpoint or model file that cannot be used; `where` is the file."""


class ForeignModelError(CheckpointError):
    """A model that only DeePMD-kit's classes can evaluate; `where` is the file."""


def _short(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
