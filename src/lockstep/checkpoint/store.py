"""The checkpoints of a run on the disk: never half-written, the latest of them kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.checkpoint.format import Frozen, encode, freeze
from lockstep.checkpoint.names import (
    POINTER,
    SUFFIX,
    link_of,
    numbered_files,
    pointed,
    prefix_and_step,
    reference,
    same_prefix,
)
from lockstep.errors import CheckpointError
from lockstep.files import describe_failure, link_atomically, remove_leftovers, write_atomically


class CheckpointStore:
    """Writes the checkpoints `<save_ckpt>-<step>.safetensors` of a run and keeps the latest of them.

    Args:
        save_ckpt: path and beginning of the file names.
        max_keep: number of latest checkpoints kept.
        save_dir: folder of the files, if not that of `save_ckpt`.
    """

    def __init__(self, save_ckpt: str | Path, max_keep: int, save_dir: str | Path | None = None) -> None:
        self.prefix = Path(save_ckpt)
        self.folder = self.prefix.parent if save_dir is None else Path(save_dir)
        self.max_keep = max_keep

    def path_for(self, step: int) -> Path:
        """The file of the checkpoint after `step` updates."""
        return self.folder / f"{self.prefix.name}-{step}{SUFFIX}"

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `step`: see `write`."""
        return self.write(freeze(step, tensors, info))

    def write(self, frozen: Frozen) -> Path:
        """Write a checkpoint; when this returns it is on the disk, and it is the newest.

        On failure everything is as it was before.
        """
        path = self.path_for(frozen.step)
        data = encode(frozen)
        try:
            self._prepare_folders()
            write_atomically(path, data)
            self._publish(path)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of {len(data)} bytes cannot be written: {describe_failure(error, path)}",
                where=str(path),
                remedy="make room, or let training.save_ckpt or training.save_dir point to another disk;"
                f" earlier checkpoints are untouched: continue with dp train --restart {self.prefix}",
            ) from error
        self._rotate(frozen.step)
        return path

    def _prepare_folders(self) -> None:
        """Make the folders, and clear away what killed runs of this prefix left half-written."""
        for folder in {self.folder, self.prefix.parent, pointer_of(self.prefix).parent}:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder, rf"{re.escape(self.prefix.name)}(-\d+|-{POINTER})?({re.escape(SUFFIX)})?")

    def _publish(self, path: Path) -> None:
        link = link_of(self.prefix)
        # A real file of that name is the user's; a file system without links can do without this one.
        if link.is_symlink() or not link.exists():
            with suppress(OSError, NotImplementedError):
                link_atomically(link, reference(path, link.parent))
        pointer = pointer_of(self.prefix)
        if owner_of(pointer, self.folder / self.prefix.name) is None:
            text = reference(path, pointer.parent)
            write_atomically(pointer, text.encode(), owner=f"{self.prefix.name}-{POINTER}")

    def _rotate(self, newest: int) -> None:
        """Remove the oldest beyond `max_keep`. Later steps are of another, longer run: left alone."""
        files = numbered_files(self.folder / self.prefix.name)
        own = {step: file for step, file in files.items() if step <= newest and not file.is_symlink()}
        for step in sorted(own, reverse=True)[self.max_keep :]:
            with suppress(OSError):
                own[step].unlink()


class NullStore:
    """The store of the ranks that do not write."""

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def pointer_of(prefix: Path) -> Path:
    """DeePMD-kit's pointer lies in the working folder; only a folder of the same name is in its way."""
    return prefix.with_name(POINTER) if os.path.isdir(POINTER) else Path(POINTER)


def owner_of(pointer: Path, prefix: Path) -> Path | None:
    """The prefix of the other run, not that of `prefix`, whose checkpoint a pointer names; None where there is none."""
    target = pointed(pointer)
    if target is None or not target.is_file():
        return None
    found = prefix_and_step(target)
    return None if found is None or same_prefix(found[0], prefix) else found[0]
