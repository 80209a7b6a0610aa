"""How loops are compiled: by numba, kept on disk, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., None])


def compiled(function: Function) -> Function:
    """Compile a loop on its first call. nogil: loader threads run while the training step does; fastmath lets sums be
    vectorised."""
    return cast(Function, numba.njit(cache=True, nogil=True, fastmath=True, boundscheck=False)(function))
