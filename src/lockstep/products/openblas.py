"""OpenBLAS as NumPy has loaded it, called through the C interface of BLAS.

It computes with one thread; where torch has several, each of torch's own team gets a share of the result.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.products.region import ROW_MAJOR, Job, share_address
from lockstep.team import address_of, call_in_team, n_shares, team_functions

_WORTH_IT = 1 << 19
"""Multiplications, some ten microseconds of them, that are worth a call from here, and each more thread."""
_PLAIN, _TRANSPOSED = 111, 112


class OpenBlas:
    """OpenBLAS with 64-bit integers.

    Attributes:
        core: the kind of processor whose kernels it uses.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        name = library.scipy_openblas_get_corename64_
        name.restype = ctypes.c_char_p
        self.core = name().decode()
        self._routines = {
            torch.float64: _declared(library.scipy_cblas_dgemm64_, ctypes.c_double),
            torch.float32: _declared(library.scipy_cblas_sgemm64_, ctypes.c_float),
        }
        self._addresses = {dtype: address_of(routine) for dtype, routine in self._routines.items()}
        self._threads = library.scipy_openblas_get_num_threads64_
        self._set_threads = library.scipy_openblas_set_num_threads64_

    def takes(self, out: Tensor, inner: int) -> bool:
        """Whether a product is one for this library: torch is quicker to call, and better with small ones."""
        return out.numel() * inner >= _WORTH_IT and out.dtype in self._routines and out.device.type == "cpu"

    def multiply(self, left: Tensor, right: Tensor, out: Tensor, keep: bool) -> None:
        """out = left right, added to what is there if that is to be kept."""
        rows, columns = out.shape
        inner = left.shape[1]
        assert left.shape[0] == rows
        assert right.shape == (inner, columns)
        assert left.dtype == right.dtype == out.dtype
        assert out.stride(1) == 1 or columns == 1
        if not rows or not columns:
            return
        (left_order, left_apart), (right_order, right_apart) = _layout(left), _layout(right)
        out_apart = max(out.stride(0), columns)
        routine = self._routines[out.dtype]
        shares = n_shares(rows * columns * inner, _WORTH_IT)
        with self.alone():
            if shares == 1:
                routine(
                    ROW_MAJOR, left_order, right_order, rows, columns, inner, 1.0, left.data_ptr(), left_apart,
                    right.data_ptr(), right_apart, float(keep), out.data_ptr(), out_apart,
                )  # fmt: skip
                return
            size = out.element_size()
            job = Job(
                address_of(routine), *team_functions(), rows, columns, inner,
                left.data_ptr(), left_order, left_apart, left.stride(0) * size,
                right.data_ptr(), right_order, right_apart, right.stride(1) * size,
                out.data_ptr(), out_apart, size, float(keep),
            )  # fmt: skip
            call_in_team(share_address(), ctypes.addressof(job), shares)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have it compute with one thread: those of its own would fight with torch's for the cores."""
        threads = self._threads()
        if threads != 1:
            self._set_threads(1)
        try:
            yield
        finally:
            if threads != 1:
                self._set_threads(threads)

    def address(self, dtype: torch.dtype) -> int:
        """Where the routine for numbers of a type begins, for compiled code."""
        return self._addresses[dtype]


@cache
def loaded() -> OpenBlas | None:
    """The library that NumPy has loaded, if it is the one of its wheels."""
    for path in Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*"):
        try:
            return OpenBlas(ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD))
        except (OSError, AttributeError):
            continue
    return None


def _declared(routine: Any, number: Any) -> Any:
    pointer, long, enum = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    factors = [number, pointer, long, pointer, long]
    routine.argtypes = [enum, enum, enum, long, long, long, *factors, number, pointer, long]
    routine.restype = None
    return routine


def _layout(matrix: Tensor) -> tuple[int, int]:
    """Whether a matrix is stored by columns, and how far its rows, or columns, are apart."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if right == 1 or columns == 1:
        return _PLAIN, max(down, columns)
    assert down == 1 or rows == 1, "neither rows nor columns are in one piece"
    return _TRANSPOSED, max(right, rows)
