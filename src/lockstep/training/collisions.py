"""Names that collide: two things that a run writes, or reads, under one name. Found before anything is written."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from lockstep.checkpoint.names import POINTER, SUFFIX
from lockstep.errors import UserError
from lockstep.observe.budget import budget_path

_PREFIX, _CURVE = "training.save_ckpt", "training.disp_file"
OWN_OUTPUT = ".out.json"
"""What is added to the checkpoints' prefix to name the input with all defaults, where another run has `out.json`."""


def refuse_collisions(files: Mapping[str, str | None]) -> None:
    """Stop where two of `files`, by the options that name them, are one; `training.save_ckpt` stands for many."""
    _refuse_long_names(files)
    named = [
        (option, what, Path(path)) for option, given in files.items() if given for what, path in _all(option, given)
    ]
    for (one, _, first), (other, what, second) in combinations(named, 2):
        if one != other and _same(first, second):
            raise _collision(one, files[one], other, what)
    prefix = files.get(_PREFIX)
    if prefix:
        _refuse_checkpoints(files, Path(prefix))


def _refuse_long_names(files: Mapping[str, str | None]) -> None:
    for option, path in files.items():
        try:
            os.lstat(path or os.curdir)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise UserError("the name is too long", where=option, value=path, remedy="use a shorter one") from error


def _all(option: str, given: str) -> Iterator[tuple[str, str]]:
    """What is written because of an option, in words, and its path."""
    yield "", given
    if option == _CURVE and (budget := budget_path(given)):
        yield f"{budget}, where the time went, is written beside the learning curve", str(budget)
    if option == _PREFIX:
        yield "the link to the newest checkpoint has this name", given + SUFFIX
        yield "the input with all defaults goes there if --output is of another run", given + OWN_OUTPUT
        yield "the name of the newest checkpoint is kept there", POINTER


def _refuse_checkpoints(files: Mapping[str, str | None], prefix: Path) -> None:
    checkpoint = re.compile(re.escape(prefix.name) + r"-\d+" + re.escape(SUFFIX))
    for option, path in files.items():
        if path and checkpoint.fullmatch(Path(path).name) and _same(Path(path).parent, prefix.parent):
            raise _collision(option, path, _PREFIX, "checkpoints have such names")


def _same(one: Path, other: Path) -> bool:
    try:
        if one.exists() and not one.is_file() and not one.is_dir():
            return False  # Several things may go to one device, such as /dev/null.
        return one.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def _collision(option: str, value: str | None, other: str, what: str) -> UserError:
    return UserError(
        f"is the same file as that of {other}" + (f" ({what})" if what else ""),
        where=option,
        value=value,
        remedy="give each a name of its own",
    )
