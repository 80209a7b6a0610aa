"""Where the compiled loops of this package can be used: on a CPU, and where numba is."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor


def kernels_for(x: Tensor) -> ModuleType | None:
    """The loops over centres; None where tensor operations have to do."""
    if x.device.type != "cpu":
        return None
    try:
        from lockstep.network import kernels
    except ImportError:
        return None
    return kernels


def net_kernels() -> ModuleType:
    """The loops of whole nets, where there are any."""
    from lockstep.network import net_kernels

    return net_kernels
