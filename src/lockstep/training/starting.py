"""Which checkpoint a run goes on from."""

from __future__ import annotations

import logging

from lockstep.checkpoint.find import load_checkpoint, newest_whole, of_prefix
from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.errors import CheckpointError
from lockstep.parallel.group import Group
from lockstep.parallel.launchers import torchrun
from lockstep.training.options import Options, checkpoint_prefix

log = logging.getLogger(__name__)


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
