"""Which checkpoint a run goes on from."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from lockstep.checkpoint.find import load_checkpoint, newest_whole, of_prefix
from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.errors import CheckpointError
from lockstep.parallel.group import Group
from lockstep.parallel.launchers import torchrun
from lockstep.training.options import Options, checkpoint_prefix

log = logging.getLogger(__name__)

AUTO = "auto"
"""What `--restart` takes instead of a checkpoint: this run's own newest, if there is one."""


def find_restart(config: AnyInput, options: Options, group: Group) -> Checkpoint | None:
    """The checkpoint to go on from: this run's own last one after a launcher's restart, or the one asked for."""
    if group.context.launcher == "torchrun":
        path, attempt = _left_by_this_job(config, group)
        if path is not None:
            log.info("The launcher has started this run again: it goes on from %s", path)
            return load_checkpoint(path)
        if attempt:
            log.warning("The launcher has started this run again before its first checkpoint")
    if options.restart != AUTO:
        return load_checkpoint(options.restart) if options.restart else None
    # One rank looks for all: another may still see an older state of a shared file system.
    path = group.all_gather_object(_last_of_this_run(config))[0]
    if path is None:
        log.info("There is no checkpoint of %s yet: the run begins", checkpoint_prefix(config))
    return None if path is None else load_checkpoint(path)


def _last_of_this_run(config: AnyInput) -> str | None:
    """The newest whole checkpoint; None before the first one. Damaged ones alone are an error."""
    prefix = checkpoint_prefix(config)
    files = of_prefix(prefix)
    return str(newest_whole(files, prefix).path) if files else None


def _left_by_this_job(config: AnyInput, group: Group) -> tuple[str | None, int]:
    """The checkpoint that earlier workers of this very job wrote, if any; and how often torchrun started them again.

    torchrun does not count the restart when a node comes, and the torchrun of that node knows of none: the job is as
    old as the oldest of them. A run that failed very early has not yet moved away the files of an earlier job.
    """
    began = torchrun.started_at() if torchrun.is_genuine(os.environ) else 0.0
    cards = group.all_gather_object((began, group.context.attempt, _newest_before_this_process(config)))
    path, written = cards[0][2]
    job_began = min(card[0] for card in cards)
    return path if 0 < job_began <= written else None, max(card[1] for card in cards)


def _newest_before_this_process(config: AnyInput) -> tuple[str | None, float]:
    """The newest whole checkpoint and when it was written, if that was not by this process, which may train twice."""
    try:
        path = _last_of_this_run(config)
    except CheckpointError:
        path = None
    written = Path(path).stat().st_mtime if path else 0.0
    return (path, written) if written < torchrun.started_at(os.getpid()) else (None, 0.0)
