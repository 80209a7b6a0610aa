"""Which checkpoint a run goes on from."""

from __future__ import annotations

import logging
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
    if group.context.attempt:
        path = group.all_gather_object(_last_of_this_attempt(config))[0]
        if path is not None:
            log.info("The launcher has started this run again: it goes on from %s", path)
            return load_checkpoint(path)
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


def _last_of_this_attempt(config: AnyInput) -> str | None:
    try:
        path = _last_of_this_run(config)
    except CheckpointError:
        return None
    # A run that failed very early has not yet moved away the files of an earlier one.
    return path if path and Path(path).stat().st_mtime >= torchrun.started_at() else None
