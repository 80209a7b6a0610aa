"""What the command line says beyond the input file. Light: it is there before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.config import AnyInput


@dataclass(frozen=True)
class Options:
    """What the command line says beyond the input file.

    Attributes:
        restart: a checkpoint to go on from, step and all; or `auto`, this run's own newest where there is one.
        init_model: a checkpoint whose weights a new run begins with.
        init_frz_model: a `.dp` model whose weights a new run begins with.
        skip_neighbor_stat: do not count neighbours in all frames.
        output: where the input with all defaults is written.
        profile: write a communication profile.
        timeline: write a timeline to this file.
        ranks_per_frame: instead of what the input file says.
        finetune: a model to be fine-tuned to the data.
        head: which of its models, where it holds several.
    """

    restart: str | None = None
    init_model: str | None = None
    init_frz_model: str | None = None
    skip_neighbor_stat: bool = False
    output: str = "out.json"
    profile: bool = False
    timeline: str | None = None
    ranks_per_frame: int | str | None = None
    finetune: str | None = None
    head: str | None = None


def checkpoint_prefix(config: AnyInput) -> Path:
    """Path and beginning of the name of this run's checkpoints."""
    prefix = Path(config.training.save_ckpt)
    return prefix if config.training.save_dir is None else Path(config.training.save_dir) / prefix.name
