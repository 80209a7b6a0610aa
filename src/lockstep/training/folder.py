"""The files that a run writes, and how their places are made ready for it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.checkpoint.format import Checkpoint
from lockstep.checkpoint.names import leads_to_newest, link_of, numbered_files, prefix_and_step, same_prefix
from lockstep.checkpoint.store import owner_of, pointer_of
from lockstep.config import AnyInput
from lockstep.errors import UserError
from lockstep.files import write_text
from lockstep.observe.budget import budget_path
from lockstep.parallel.group import Group
from lockstep.training.aside import old_files, set_aside
from lockstep.training.collisions import OWN_OUTPUT
from lockstep.training.options import checkpoint_prefix

log = logging.getLogger(__name__)


def prepare_folder(config: AnyInput, checkpoint: Checkpoint | None, output: str, group: Group) -> None:
    """Write out.json, and move the files of an earlier run out of the way of this one, unless it goes on from them.

    The last thing before the first step: a run that cannot begin leaves everything as it was. What belongs to another
    run in the same folder, by its prefix, is left alone.
    """
    if group.rank == 0:
        _prepare(config, checkpoint, output)
    group.barrier()


def _prepare(config: AnyInput, checkpoint: Checkpoint | None, output: str) -> None:
    training, prefix = config.training, checkpoint_prefix(config)
    refuse_folders({"training.disp_file": training.disp_file, "--output": output})
    target = _free_output(Path(output), prefix)
    pointer = pointer_of(Path(training.save_ckpt))
    other = owner_of(pointer, prefix)
    if other is not None:
        log.info("%s names a checkpoint of the run %s and stays so; this run is found by %s", pointer, other, prefix)
    if checkpoint is None or not _is_of(checkpoint, prefix):
        curve, link = training.disp_file, link_of(Path(training.save_ckpt))
        # With save_dir the link lies apart from the files.
        others = [Path(curve), budget_path(curve), target, None if other else pointer]
        others += [link] if leads_to_newest(link) else []
        set_aside(old_files(prefix, filter(None, others)), prefix)
    write_text(target, json.dumps(config.dump(), indent=2) + "\n")


def refuse_folders(outputs: Mapping[str, str]) -> None:
    """Stop where a folder has the name of a file to be written; by the option that names it."""
    for option, path in outputs.items():
        if Path(path).is_dir():
            raise UserError("a folder has this name", where=option, value=path, remedy="name a file")
        if not os.access(_existing(Path(path).absolute().parent), os.W_OK | os.X_OK):
            raise UserError("its folder cannot be written to", where=option, value=path, remedy="name another place")


def _existing(folder: Path) -> Path:
    """The folder, or the one above it in which it can be made."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _is_of(checkpoint: Checkpoint, prefix: Path) -> bool:
    """Whether a checkpoint is one of this run's own, be it by a link."""
    assert checkpoint.path is not None
    names = (prefix_and_step(path) for path in (checkpoint.path, checkpoint.path.resolve()))
    return any(name and same_prefix(name[0], prefix) for name in names)


def _free_output(output: Path, prefix: Path) -> Path:
    """Where the input with all defaults goes: `output`, or beside the checkpoints if that is of another run."""
    other = _run_of(output)
    if other is None or same_prefix(other, prefix):
        return output
    own = prefix.with_name(prefix.name + OWN_OUTPUT)
    log.info("%s is of the run %s and stays so; this run's input with all defaults is %s", output, other, own)
    return own


def _run_of(output: Path) -> Path | None:
    """The prefix of the run that wrote an `out.json`, if it has checkpoints."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        training: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))["training"]
        prefix = output.parent / training["save_ckpt"]
        if training.get("save_dir"):
            prefix = output.parent / training["save_dir"] / prefix.name
        if numbered_files(prefix):
            return prefix
    return None
