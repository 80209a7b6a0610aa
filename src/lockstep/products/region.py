"""One product on several threads: what each of a team does, compiled.

Nothing here needs the interpreter, so that threads do not wait for its lock, which takes as long as a small product.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from lockstep.compiled import called_from_c, inlined

ROW_MAJOR = 101


class Job(ctypes.Structure):
    """A product out = left right, or out += left right.

    Of each matrix: where it is, whether it is transposed (`order`), its leading dimension (`apart`), and how many bytes
    the next row of the left or column of the right one is away (`step`).
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("routine", "thread_number", "n_threads", "rows", "columns", "inner")),
        *((name, ctypes.c_int64) for name in ("left", "left_order", "left_apart", "left_step")),
        *((name, ctypes.c_int64) for name in ("right", "right_order", "right_apart", "right_step")),
        *((name, ctypes.c_int64) for name in ("out", "out_apart", "size")),
        ("keep", ctypes.c_double),
    )


@intrinsic
def _call(context: Any, address: Any, arguments: Any) -> Any:
    """Call a function by its address. Addresses among its arguments are whole numbers."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        given = cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in given])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(address, arguments), generate


@intrinsic
def _ask(context: Any, address: Any) -> Any:
    """The number that a function without arguments gives."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        function = builder.inttoptr(values[0], ir.FunctionType(ir.IntType(32), []).as_pointer())
        return builder.sext(builder.call(function, []), ir.IntType(64))

    return types.int64(address), generate


call: Any = _call
ask: Any = _ask


@inlined
def product(
    routine: Any, size: Any, left_turned: Any, right_turned: Any, rows: Any, columns: Any, inner: Any,
    left: Any, left_apart: Any, right: Any, right_apart: Any, keep: Any, out: Any, out_apart: Any,
) -> None:  # fmt: skip
    """In compiled code: out = left right, plus `keep` times what is there, by a routine for numbers of `size` bytes.

    Matrices are addresses, with how far their rows are apart in memory; a factor that is turned is stored by columns.
    """
    orders = np.int32(ROW_MAJOR), np.int32(112 if left_turned else 111), np.int32(112 if right_turned else 111)
    sizes = np.int64(rows), np.int64(columns), np.int64(inner)
    factors = np.int64(left), np.int64(left_apart), np.int64(right), np.int64(right_apart)
    if size == 8:
        call(np.int64(routine), (*orders, *sizes, 1.0, *factors, keep, np.int64(out), np.int64(out_apart)))
    else:
        one, kept = np.float32(1.0), np.float32(keep)
        call(np.int64(routine), (*orders, *sizes, one, *factors, kept, np.int64(out), np.int64(out_apart)))


@inlined
def address(array: Any) -> Any:
    """In compiled code: where an array begins."""
    return np.int64(array.ctypes.data)


def _share(jobs: Any) -> None:
    """This thread's share of a product: of its rows or columns, whichever are more."""
    job = carray(jobs, 1)[0]
    share, shares = ask(job.thread_number), ask(job.n_threads)
    rows, columns, left, right, out = job.rows, job.columns, job.left, job.right, job.out
    if rows > columns:
        start, stop = rows * share // shares, rows * (share + 1) // shares
        rows, left, out = stop - start, left + start * job.left_step, out + start * job.out_apart * job.size
    else:
        start, stop = columns * share // shares, columns * (share + 1) // shares
        columns, right, out = stop - start, right + start * job.right_step, out + start * job.size
    orders = np.int32(ROW_MAJOR), np.int32(job.left_order), np.int32(job.right_order)
    sizes = rows, columns, job.inner
    factors = left, job.left_apart, right, job.right_apart
    if job.size == 8:
        call(job.routine, (*orders, *sizes, 1.0, *factors, job.keep, out, job.out_apart))
    else:
        call(job.routine, (*orders, *sizes, np.float32(1.0), *factors, np.float32(job.keep), out, job.out_apart))


@cache
def share_address() -> int:
    """The address of the function that each thread of a team calls with the address of a `Job`."""
    signature = types.void(types.CPointer(numba.from_dtype(np.dtype(Job))))
    address: int = called_from_c(signature)(_share).address
    return address
