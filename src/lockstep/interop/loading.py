"""Loading a potential from whatever file holds one."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import CheckpointError
from lockstep.model.potential import Potential

_SUFFIX = ".dp"
_FOREIGN = (".pb", ".pt2", ".pte", ".savedmodel", ".savedmodeltf", ".hlo")


def load_potential(path: str | Path) -> Potential:
    """The potential in a `.dp` model or in a checkpoint, told apart by their content.

    A `.dp` model may be named without its suffix; a checkpoint by its prefix, or by the folder of its run.
    """
    from lockstep.interop.exchange import is_exchange_file

    path = Path(path)
    if not path.exists() and (model := path.with_name(path.name + _SUFFIX)).is_file():
        path = model
    if is_exchange_file(path) or path.suffix == _SUFFIX:
        from lockstep.interop.deepmd import load_dp

        return load_dp(path)
    _refuse_foreign(path)
    from lockstep.checkpoint.store import load_checkpoint
    from lockstep.training.state import potential_of

    return potential_of(load_checkpoint(path))


def _refuse_foreign(path: Path) -> None:
    """Tell what a file is not, before it is taken for a damaged checkpoint."""
    if path.is_file() and path.suffix not in _FOREIGN and not _may_be_checkpoint(path):
        raise CheckpointError(
            "is neither a model (.dp) nor a checkpoint (.safetensors)",
            where=str(path),
            remedy="name one of these, a prefix such as model.ckpt, or the folder of a run",
        )
    if path.exists() and path.suffix in _FOREIGN:
        raise CheckpointError(
            "is a model for another program, not in DeePMD-kit's exchange format",
            where=str(path),
            remedy=f"with DeePMD-kit: dp convert-backend {path.name} {path.stem}{_SUFFIX}",
        )


def _may_be_checkpoint(path: Path) -> bool:
    """Whether the file begins like a checkpoint, or like a pickle, which is refused with a reason of its own."""
    with path.open("rb") as file:
        head = file.read(9)
    return path.suffix == ".safetensors" or head[8:] == b"{" or head.startswith((b"PK\x03\x04", b"\x80"))
