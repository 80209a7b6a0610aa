"""Lockstep trains Deep Potential models from DeePMD-kit input files, alone or on many workers in lockstep."""

from typing import TYPE_CHECKING, Any

from lockstep.version import __version__

__all__ = ["DP", "__version__", "train"]

if TYPE_CHECKING:
    from lockstep.interop.ase_calculator import DP
    from lockstep.training.script import train


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `import lockstep` and `dp --help` do not pay for torch and ASE.
    if name == "DP":
        from lockstep.interop.ase_calculator import DP

        return DP
    if name == "train":
        from lockstep.training.script import train

        return train
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
