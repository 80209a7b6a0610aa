"""What the command line says beyond the input file, and which checkpoint a run goes on from."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from lockstep.checkpoint.find import load_checkpoint, newest_whole, of_prefix
from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.errors import CheckpointError
from lockstep.parallel.group import Group
from lockstep.parallel.launchers import torchrun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What the command line says beyond the input file.

    Attributes:
        restart: a checkpoint to go on from, step and all.
        init_model: a checkpoint whose weights a new run begins with.
        init_frz_model: a `.dp` model whose weights a new run begins with.
        skip_neighbor_stat: do not count neighbours in all frames.
        output: where the input with all defaults is written.
        profile: write a communication profile.
        timeline: write a timeline to this file.
    """

    restart: str | None = None
    init_model: str | None = None
    init_frz_model: str | None = None
    skip_neighbor_stat: bool = False
    output: str = "out.json"
    profile: bool = False
    timeline: str | None = None


def find_restart(config: AnyInput, options: Options, group: Group) -> Checkpoint | None:
    """The checkpoint to go on from: this run's own last one after a launcher's restart, or the one asked for."""
    if group.context.attempt:
        path = group.all_gather_object(_last_of_this_run(config))[0]
        if path is not None:
            log.info("The launcher has started this run again: it goes on from %s", path)
            return load_checkpoint(path)
        log.warning("The launcher has started this run again before its first checkpoint")
    return load_checkpoint(options.restart) if options.restart else None


def _last_of_this_run(config: AnyInput) -> str | None:
    files = of_prefix(checkpoint_prefix(config))
    try:
        path = newest_whole(files, checkpoint_prefix(config)).path if files else None
    except CheckpointError:
        return None
    if path is None:
        return None
    # A run that failed very early has not yet moved away the files of an earlier one.
    return str(path) if path.stat().st_mtime >= torchrun.started_at() else None


def checkpoint_prefix(config: AnyInput) -> Path:
    """Path and beginning of the name of this run's checkpoints."""
    prefix = Path(config.training.save_ckpt)
    return prefix if config.training.save_dir is None else Path(config.training.save_dir) / prefix.name
