"""A mistake in the input file, and how several of them become one error."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.errors import InputError

_SCREENFUL, _LINES, _LETTERS = 12, 22, 1700
NO_VALUE = object()


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is, what was found, why it is wrong, what to do."""

    where: str
    reason: str
    value: object = NO_VALUE
    remedy: str = ""

    def error(self) -> InputError:
        """Return this mistake as an error of its own."""
        if self.value is NO_VALUE:
            return InputError(self.reason, where=self.where, remedy=self.remedy)
        return InputError(self.reason, where=self.where, value=self.value, remedy=self.remedy)


def combine(problems: Sequence[Problem], source: str) -> InputError:
    """Return one error that tells of all the problems, at most a screenful of them."""
    assert problems
    if len(problems) == 1:
        return problems[0].error()
    shown = list(_screenful(problems))
    rest = len(problems) - len(shown)
    tail = [f"and {rest} more"] if rest else []
    return InputError("\n  ".join([f"{len(problems)} mistakes", *shown, *tail]), where=source)


def _screenful(problems: Sequence[Problem]) -> Iterator[str]:
    """The first of the problems in words, each remedy once, as many as a screen has room for."""
    advice: set[str] = set()
    letters = lines = 0
    for problem in problems[:_SCREENFUL]:
        known = problem.remedy in advice
        advice.add(problem.remedy)
        text = str((replace(problem, remedy="") if known else problem).error()).replace("\n", "\n  ")
        letters, lines = letters + len(text), lines + text.count("\n") + 1
        if lines > _LINES or letters > _LETTERS:
            return
        yield text


def nearest(name: str, known: Collection[str], listed: Iterable[str] | None = None) -> str:
    """Return advice on what `name` was meant to be: the nearest of `listed` or of `known`, or else all of `listed`.

    Names in `known` alone are aliases: suggested only where no listed name comes close.
    """
    listed = list(known) if listed is None else list(listed)
    for names in (listed, known):
        by_lower = {candidate.lower(): candidate for candidate in names}
        close = difflib.get_close_matches(name.lower(), by_lower, n=1)
        if close:
            return f"did you mean {by_lower[close[0]]!r}?"
    return f"possible here: {', '.join(sorted(listed))}"
