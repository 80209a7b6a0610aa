"""The checkpoints of a run that are kept for being best, by some error on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.checkpoint.format import encode, freeze
from lockstep.checkpoint.names import BEST, SUFFIX
from lockstep.errors import CheckpointError
from lockstep.files import describe_failure, write_atomically

Ranking = list[tuple[float, int]]
"""Errors and the steps at which they were found, best first."""


class BestStore:
    """Keeps `<folder>/best.ckpt-<step>.safetensors` of the best steps.

    Args:
        folder: where they lie; None keeps no files, only the ranking.
        keep: how many.
        ranking: what earlier parts of the run have found.
    """

    def __init__(self, folder: Path | None, keep: int, ranking: Sequence[Sequence[float]] = ()) -> None:
        self._folder, self._keep = folder, keep
        self.ranking: Ranking = [(float(error), int(step)) for error, step in ranking]

    def is_among_best(self, error: float) -> bool:
        return len(self.ranking) < self._keep or error < self.ranking[-1][0]

    def enter(self, error: float, step: int) -> list[int]:
        """Put a step into the ranking; returns the steps that it drives out."""
        ranked = sorted([*((e, s) for e, s in self.ranking if s != step), (error, step)])
        self.ranking = ranked[: self._keep]
        return [out for _, out in ranked[self._keep :]]

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any], driven_out: list[int]) -> None:
        """Write a checkpoint, then remove those that it has driven out."""
        if self._folder is None:
            return
        path = self._path(step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, encode(freeze(step, tensors, info)))
        except OSError as error:
            raise CheckpointError(
                f"the best checkpoint cannot be written: {describe_failure(error, path)}",
                where=str(path),
                remedy="make room, or let validating.save_best_dir point to another disk",
            ) from error
        for other in driven_out:
            with suppress(OSError):
                self._path(other).unlink()

    def _path(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{BEST}-{step}{SUFFIX}"
