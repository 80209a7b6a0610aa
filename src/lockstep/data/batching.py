"""`batch_size`: from what the input file says to the number of frames in a micro-batch of each system."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.errors import InputError

DEFAULT_ATOMS = 32  # what "auto" stands for, as in DeePMD-kit


def parse_rule(batch_size: str, where: str) -> tuple[str, int]:
    """("auto" | "max" | "filter", number of atoms) or ("mixed", number of frames) of a rule in words."""
    kind, _, number = batch_size.partition(":")
    kind = "mixed" if kind == "mix" else kind
    if batch_size == "auto":
        return kind, DEFAULT_ATOMS
    if kind in ("auto", "max", "filter", "mixed") and number.isdecimal() and int(number) > 0:
        return kind, int(number)
    raise InputError(
        'expected an integer, a list of integers, "auto", "auto:N", "max:N", "filter:N" or "mixed:N" with N > 0',
        where=where,
        value=batch_size,
        remedy='"auto" suits most data: it gives every micro-batch at least 32 atoms',
    )


def kept_systems(
    batch_size: int | str | Sequence[int],
    natoms: np.ndarray,
    where: str = "training.training_data.batch_size",
) -> np.ndarray:
    """Numbers of the systems to train on: all of them, except that "filter:N" drops those above N atoms."""
    everything = np.arange(len(natoms))
    if not isinstance(batch_size, str):
        return everything
    kind, atoms = parse_rule(batch_size, where)
    if kind != "filter":
        return everything
    kept = everything[natoms <= atoms]
    if not len(kept):
        raise InputError(
            f"no system is left: the smallest has {natoms.min()} atoms",
            where=where,
            value=batch_size,
            remedy=f'raise the limit, or use "max:{atoms}", which drops nothing',
        )
    return kept


def batch_sizes(
    batch_size: int | str | Sequence[int],
    natoms: np.ndarray,
    n_frames: np.ndarray,
    where: str = "training.training_data.batch_size",
) -> np.ndarray:
    """Frames in a micro-batch of each system, never more than the system has.

    "auto:N" is the smallest number of frames with at least N atoms in all; "max:N" and "filter:N" the largest
    with at most N, though never less than one frame; "mixed:N" is N frames, of systems put together (`merged`).
    """
    if isinstance(batch_size, str):
        wanted = _by_rule(*parse_rule(batch_size, where), natoms)
    elif isinstance(batch_size, (int, np.integer)):
        wanted = np.full(len(natoms), batch_size)
    else:
        wanted = np.array(batch_size)
        if len(wanted) != len(natoms):
            raise InputError(
                f"the list has {len(wanted)} entries for {len(natoms)} systems",
                where=where,
                value=batch_size,
                remedy="give one entry for each system found (a folder may hold several), or a single number",
            )
    if wanted.dtype.kind not in "iu" or (wanted < 1).any():
        raise InputError(
            "a batch size must be an integer of at least 1",
            where=where,
            value=batch_size,
            remedy='for example 1, or "auto"',
        )
    return np.minimum(wanted, n_frames).astype(np.int64)


def _by_rule(kind: str, number: int, natoms: np.ndarray) -> np.ndarray:
    if kind == "mixed":
        return np.full(len(natoms), number)
    return -(-number // natoms) if kind == "auto" else np.maximum(number // natoms, 1)


def is_mixed(batch_size: int | str | Sequence[int], where: str) -> bool:
    """Whether a micro-batch may have frames of several systems."""
    return isinstance(batch_size, str) and parse_rule(batch_size, where)[0] == "mixed"


def batch_counts(n_frames: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Micro-batches in one pass over each system, the last one counted even if it is not full.

    This is the count that DeePMD-kit's PyTorch backend weighs systems and measures epochs with.
    """
    return -(-n_frames // sizes)
