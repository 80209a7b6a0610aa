"""Shares of a compiled loop on the threads that torch computes with.

Between two matrix products OpenMP's threads wait spinning, for they would take long to wake. Threads of a pool of our
own would find the cores taken by them, and were measured to be slower than one thread alone. So the shares are run by
the very team that the products have kept awake: torch's own OpenMP library is asked for it. Where torch has another
one, and in threads that are not the training's, a loop is one share.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def n_shares(work: int, least: int) -> int:
    """How many shares a loop is worth, of which each has at least so much work: one for each thread at the most."""
    most = min(torch.get_num_threads(), work // least)
    if most < 2 or threading.current_thread() is not threading.main_thread() or _openmp() is None:
        return 1
    return most


def rows_in_shares(run: Callable[[slice], None], rows: int, least: int) -> None:
    """Run a loop over rows that do not depend on each other."""
    in_shares(run, slices(rows, least))


def slices(rows: int, least: int) -> list[slice]:
    """Rows in as many shares as they are worth, all of a size."""
    number = n_shares(rows, least)
    return [slice(rows * k // number, rows * (k + 1) // number) for k in range(number)]


def in_shares(run: Callable[[Item], None], shares: Sequence[Item]) -> None:
    """Call `run` with every share, all at once where there are several; an error in one of them is raised here."""
    openmp = _openmp()
    if len(shares) == 1 or openmp is None:
        for share in shares:
            run(share)
        return
    # Whoever is free takes the next: no share is lost should the team be smaller than it was asked to be.
    left, failures = iter(shares), []

    def region(_: Any) -> None:
        try:
            for share in left:
                run(share)
        except BaseException as failure:
            failures.append(failure)

    region_function = _Region(region)
    openmp.GOMP_parallel(region_function, None, len(shares), 0)
    if failures:
        raise failures[0]


def call_in_team(function: int, argument: int, threads: int) -> None:
    """Have so many threads call the function at an address, compiled code that needs no interpreter, all at once."""
    openmp = _openmp()
    assert openmp is not None, "one thread was all there is"
    openmp.GOMP_parallel(function, argument, threads, 0)


@cache
def team_functions() -> tuple[int, int]:
    """Addresses of what compiled code asks in a team: the number of its thread, and how many there are."""
    openmp = _openmp()
    assert openmp is not None, "one thread was all there is"
    return address_of(openmp.omp_get_thread_num), address_of(openmp.omp_get_num_threads)


def address_of(function: Any) -> int:
    """Where a function of a library begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _openmp() -> ctypes.CDLL | None:
    """The library that torch has loaded for its threads, if it is GNU's."""
    packages = Path(torch.__file__).parents[1]
    for path in [*packages.glob("torch/lib/libgomp*"), *packages.glob("torch.libs/libgomp*")]:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
        except (OSError, AttributeError):
            continue
        return library
    return None
