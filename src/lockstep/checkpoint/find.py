"""From what a user names to the checkpoint it stands for: that path, and never another run's."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from lockstep.checkpoint.format import Checkpoint, DamagedCheckpointError, read_checkpoint
from lockstep.checkpoint.names import (
    BEST,
    POINTER,
    SUFFIX,
    identity,
    leads_to_newest,
    link_of,
    linked,
    numbered_files,
    pointed,
    prefix_and_step,
    prefixes_in,
    same_prefix,
)
from lockstep.errors import CheckpointError

log = logging.getLogger(__name__)


def load_checkpoint(where: str | Path) -> Checkpoint:
    """The newest whole checkpoint that `where` stands for (see `find_checkpoint`); the log says which it was.

    Damaged ones are passed over with a warning, unless `where` names a single file.
    """
    found = newest_whole(find_checkpoint(where), Path(where))
    log.info("Loaded %s (step %d)", found.path, found.step)
    return found


def newest_whole(candidates: Iterable[Path], where: Path) -> Checkpoint:
    """The first of `candidates` that is whole; `where` is what the user named."""
    damaged: list[DamagedCheckpointError] = []
    for path in candidates:
        try:
            found = read_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        warnings = tuple(f"{error.where} is damaged and passed over: {error.reason}" for error in damaged)
        for warning in warnings:
            log.warning("%s; going on from %s", warning, path)
        return Checkpoint(found.step, found.tensors, found.info, path, warnings)
    raise _no_whole_checkpoint(where, damaged)


def find_checkpoint(where: str | Path) -> list[Path]:
    """The checkpoint files that `where` stands for, newest first.

    `where` is a folder, a prefix (`model.ckpt`), a numbered name (`model.ckpt-1000`), or a file's full name;
    the last two stand for that file alone.
    """
    path = Path(where)
    if os.path.isdir(path):
        return _in_folder(path)
    if leads_to_newest(path):
        return of_prefix(path.with_name(path.name.removesuffix(SUFFIX)))
    if os.path.isfile(path):
        return [path]
    found = _by_short_name(path)
    if found:
        return found
    raise CheckpointError(
        "there is no such checkpoint",
        where=str(where),
        remedy=f"name a folder, a prefix such as model.ckpt, or a file; {_listing(path.parent)}",
    )


def of_prefix(prefix: Path, pointers: Iterable[Path] = ()) -> list[Path]:
    """The files of a prefix: first the newest, then the earlier ones, then those of later steps.

    Later steps are of another, longer run under the same prefix. Which one is the newest is told by the link beside
    the prefix, or by the first of `pointers` (and of those in the prefix's and the current folder) that names a file of
    this very prefix; without any of these it is the last.
    """
    link = link_of(prefix)
    newest = linked(link) if leads_to_newest(link) else None
    if newest is None:
        pointers = (*pointers, prefix.with_name(POINTER), Path(POINTER))
        newest = next((file for p in pointers if (file := pointed(p)) and _is_of(file, prefix)), None)
    files = numbered_files(prefix if newest is None else newest.with_name(prefix.name))
    last = max(files, default=0)
    if newest is not None and (found := prefix_and_step(newest)):
        last = found[1]
        files.setdefault(last, newest)
    return [files[step] for step in sorted(files, key=lambda step: (step > last, -step))]


def _is_of(file: Path, prefix: Path) -> bool:
    found = prefix_and_step(file)
    return found is not None and same_prefix(found[0], prefix)


def _by_short_name(path: Path) -> list[Path]:
    """What a name without its end stands for: a prefix, or a file that lacks `.safetensors` (or DeePMD-kit's `.pt`)."""
    if not path.name:
        return []
    file = link_of(path)
    single = [file] if os.path.isfile(file) and not leads_to_newest(file) else []
    found = of_prefix(path)
    # A file in the place of the link is a copy of some earlier newest; a numbered one is a checkpoint of its own.
    if single and found and prefix_and_step(file):
        raise CheckpointError(
            f"may mean {file}, or the run with {found[0].name}",
            where=str(path),
            remedy="name a file in full, with its .safetensors",
        )
    foreign = path.with_name(path.name + ".pt")
    return found or single or ([foreign] if os.path.isfile(foreign) else [])


def _in_folder(folder: Path) -> list[Path]:
    """The files of the one run that a folder belongs to: by its checkpoints, its links and its pointer."""
    pointer = folder / POINTER
    runs = {identity(prefix): prefix for prefix in prefixes_in(folder)}
    found = prefix_and_step(target) if (target := pointed(pointer)) else None
    if found and (os.path.isfile(target or "") or numbered_files(found[0])):
        runs.setdefault(identity(found[0]), found[0])
    if len(runs) > 1:
        runs = {key: prefix for key, prefix in runs.items() if prefix.name != BEST}
    if len(runs) == 1:
        return of_prefix(next(iter(runs.values())), (pointer,))
    names = ", ".join(sorted(str(prefix) for prefix in runs.values()))
    reason = f"has checkpoints of several runs: {names}" if runs else "has no checkpoint"
    remedy = "name the prefix of one of them" if runs else "name the folder in which the training ran"
    raise CheckpointError(f"the folder {reason}", where=str(folder), remedy=remedy)


def _listing(folder: Path) -> str:
    """What there is instead."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except (OSError, ValueError):
        return f"there is no folder {folder}"
    names = [name for name in names if not leads_to_newest(folder / name)]
    return f"{folder.absolute()} has {', '.join(names[-5:]) or 'no checkpoint'}"


def _no_whole_checkpoint(where: Path, damaged: list[DamagedCheckpointError]) -> CheckpointError:
    listing = "".join(f"\n  {error.where}: {error.reason}" for error in damaged)
    others = _listing(Path(damaged[0].where).parent)
    single = len(damaged) == 1
    return CheckpointError(
        f"{'the checkpoint is' if single else 'all checkpoints are'} damaged:{listing}",
        where=str(where),
        remedy=f"go on from another checkpoint ({others}), or train anew",
    )
