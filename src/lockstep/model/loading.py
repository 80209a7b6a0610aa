"""Loading a potential from whatever file holds one."""

from __future__ import annotations

from pathlib import Path

from lockstep.model.potential import Potential


def load_potential(path: str | Path) -> Potential:
    """The potential in a `.dp` model or in a checkpoint, told apart by their content."""
    from lockstep.interop.exchange import is_exchange_file

    if is_exchange_file(path) or Path(path).suffix == ".dp":
        from lockstep.interop.deepmd import load_dp

        return load_dp(path)
    from lockstep.training.checkpoint import load_checkpoint
    from lockstep.training.state import potential_of

    return potential_of(load_checkpoint(path))
