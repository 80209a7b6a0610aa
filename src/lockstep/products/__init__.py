"""Products of matrices that nothing is differentiated by, made by the library that is fastest on this processor.

torch multiplies by Intel's MKL, which gives processors of other makers vectors of half the width that they have: on an
AMD with AVX-512 the OpenBLAS that NumPy brings takes two thirds of the time in float64, and half in float32. Which of
the two it is depends on processor and environment alone, never on a measurement, so that a restart computes what the
run before it did.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from lockstep.products.choice import Choice, choose
from lockstep.products.openblas import loaded

log = logging.getLogger(__name__)


def mm(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out = left right. The rows of `out` are in one piece each; those of the factors are, or their columns."""
    library = choose().library
    if library is None or not library.takes(out, left.shape[1]):
        return torch.mm(left, right, out=out)
    library.multiply(left, right, out, keep=False)
    return out


def add_mm(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out += left right."""
    library = choose().library
    if library is None or not library.takes(out, left.shape[1]):
        return out.addmm_(left, right)
    library.multiply(left, right, out, keep=True)
    return out


def maker() -> str:
    """Who multiplies: what two runs must have in common to agree to the last bit."""
    library, of_nets = choose().library, loaded()
    if library is not None:
        return f"NumPy's OpenBLAS ({library.core})"
    return "torch" if of_nets is None else f"torch and, of nets, NumPy's OpenBLAS ({of_nets.core})"


def log_choice() -> None:
    """Say what multiplies where it is not what torch has, or where it could be faster."""
    choice = choose()
    if choice.why:
        log.info("matrix products: %s", choice.why)


__all__ = ["Choice", "add_mm", "choose", "log_choice", "maker", "mm"]
