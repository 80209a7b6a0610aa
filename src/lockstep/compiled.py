"""How loops are compiled: by numba, kept on disk, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
_FREELY = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""What the compiler may do with sums and products. Not among it: to take it that all numbers are finite, for those that
are not have to come out at the end of a step."""
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": _FREELY, "error_model": "numpy", "boundscheck": False}
_FROM_C: dict[str, Any] = {"error_model": "numpy", "boundscheck": False}

unsigned = np.uintp
"""For the place of a number whose neighbours are read with it. An index that may be negative counts from the end, and
the compiler then fetches the numbers one by one."""


def compiled(function: Function) -> Function:
    """Compile a loop on its first call. nogil: loader threads run while the training step does; sums in any order can
    be vectorised, and with numpy's divisions, which give infinity instead of raising an error, loops that divide."""
    try:
        return _compiled(function, cache=True)
    except RuntimeError:
        # Neither the program's folder nor the user's can be written to: compiled anew in every process.
        return _compiled(function, cache=False)


@intrinsic
def _from_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.DoubleType())

    return types.float64(types.int64), generate


from_bits: Any = _from_bits
"""In a compiled loop: the number that is stored as 64 bits, given as a whole number."""


def called_from_c(signature: Any) -> Callable[[Function], Any]:
    """Compile a function that is called by its address, which needs no interpreter."""

    def compile_it(function: Function) -> Any:
        try:
            return numba.cfunc(signature, cache=True, **_FROM_C)(function)
        except RuntimeError:
            return numba.cfunc(signature, **_FROM_C)(function)

    return compile_it


def inlined(function: Function) -> Function:
    """Part of a compiled loop, written once: it becomes part of every loop that calls it."""
    return cast(Function, numba.njit(inline="always", **_OPTIONS)(function))


def _compiled(function: Function, *, cache: bool) -> Function:
    return cast(Function, numba.njit(cache=cache, **_OPTIONS)(function))
