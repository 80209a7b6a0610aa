"""Checkpoints: never half-written, never running code when loaded.

A checkpoint is one safetensors file: tensors (`model.*`, `optimizer.*`, ...) and, as JSON in the file's
metadata, everything else that a restart needs. A checksum over all of it tells a damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lockstep.errors import CheckpointError
from lockstep.files import describe_failure, link_atomically, remove_leftovers, write_atomically

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
POINTER = "checkpoint"
FORMAT = "lockstep-checkpoint"
VERSION = 1

_NUMBERED = re.compile(r"(?P<prefix>.+)-(?P<step>\d+)" + re.escape(SUFFIX))
_CONVERT = (
    "train from its weights instead: with DeePMD-kit, dp convert-backend {name} model.dp;"
    " then dp train input.json --init-frz-model model.dp"
)


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was whole once, or should have been; an earlier one may still serve."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` updates.

    Attributes:
        step: number of updates done.
        tensors: weights, optimizer state, generator states, by dotted name.
        info: whatever else JSON can hold: stream position, configuration, versions.
        path: the file it was read from.
        warnings: what had to be passed over to find it.
    """

    step: int
    tensors: Mapping[str, Tensor]
    info: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    warnings: tuple[str, ...] = ()

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors named `prefix.*`, under the rest of their names."""
        start = prefix + "."
        return {name[len(start) :]: t for name, t in self.tensors.items() if name.startswith(start)}


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
        """Write the checkpoint; when this returns it is on the disk, and it is the newest.

        On failure everything is as it was before.
        """
        path = self.path_for(step)
        data = _encode(step, tensors, info)
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
        self._rotate(step)
        return path

    def _prepare_folders(self) -> None:
        """Make the folders, and clear away what killed runs of this prefix left half-written."""
        for folder in {self.folder, self.prefix.parent, self._pointer.parent}:
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder, rf"{re.escape(self.prefix.name)}(-\d+|-{POINTER})?({re.escape(SUFFIX)})?")

    @property
    def _pointer(self) -> Path:
        """DeePMD-kit's pointer lies in the working folder; only a folder of the same name is in its way."""
        return self.prefix.parent / POINTER if Path(POINTER).is_dir() else Path(POINTER)

    def _publish(self, path: Path) -> None:
        link = self.prefix.with_name(self.prefix.name + SUFFIX)
        # A real file of that name is the user's; a file system without links can do without this one.
        if link.is_symlink() or not link.exists():
            with suppress(OSError, NotImplementedError):
                link_atomically(link, path)
        pointer = self._pointer
        text = os.path.relpath(path, pointer.parent) if pointer.parent != Path() else str(path)
        write_atomically(pointer, text.encode(), owner=f"{self.prefix.name}-{POINTER}")

    def _rotate(self, newest: int) -> None:
        """Remove the oldest beyond `max_keep`. Later steps are of another, longer run: left alone."""
        steps = sorted((s for s in _steps(self.folder, self.prefix.name) if s <= newest), reverse=True)
        for step in steps[self.max_keep :]:
            with suppress(OSError):
                self.path_for(step).unlink()


class NullStore:
    """The store of the ranks that do not write."""

    def save(self, step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Do nothing."""


def load_checkpoint(where: str | Path) -> Checkpoint:
    """The newest whole checkpoint that `where` stands for: see `find_checkpoint`.

    Damaged ones are passed over with a warning, unless `where` names a single file.
    """
    candidates = find_checkpoint(where)
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
    raise _no_whole_checkpoint(Path(where), damaged)


def find_checkpoint(where: str | Path) -> list[Path]:
    """The checkpoint files that `where` stands for, newest first.

    `where` is a folder, a prefix (`model.ckpt`), a numbered name (`model.ckpt-1000`), or a file's full name;
    the last two stand for that file alone.
    """
    path = Path(where)
    if path.is_dir():
        return _in_folder(path)
    for file in (path, path.with_name(path.name + SUFFIX)):
        if file.is_file() and not file.is_symlink():
            return [file]
    prefix = path.with_name(path.name.removesuffix(SUFFIX))
    found = _of_prefix(prefix)
    if found:
        return found
    foreign = path.with_name(path.name + ".pt")
    if foreign.is_file():
        return [foreign]
    raise CheckpointError(
        "there is no such checkpoint",
        where=str(where),
        remedy=f"name a folder, a prefix such as model.ckpt, or a file; {_listing(path.parent)}",
    )


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in the file `path`, verified. Raises DamagedCheckpointError where another file may help."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedCheckpointError("the file is missing", where=str(path)) from error
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    _refuse_pickle(data, path)
    metadata = _metadata(data, path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError("is a safetensors file, but not a checkpoint of this program", where=str(path))
    _refuse_newer(metadata, path)
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise DamagedCheckpointError(f"the tensors cannot be read ({error})", where=str(path)) from error
    if metadata.pop("sha256", None) != _checksum(tensors, metadata):
        raise DamagedCheckpointError("the checksum does not match the contents", where=str(path))
    info = json.loads(metadata["info"])
    return Checkpoint(info.pop("step"), tensors, info, path)


def compare_configs(
    saved: Mapping[str, Any], given: Mapping[str, Any], where: str = "", ignore: tuple[str, ...] = ("seed",)
) -> list[str]:
    """One line per difference between the configuration in a checkpoint and the one in the input file.

    Keys named in `ignore` may differ at any depth.
    """
    lines: list[str] = []
    for key in [*saved, *(key for key in given if key not in saved)]:
        if key in ignore:
            continue
        path = f"{where}.{key}" if where else key
        old, new = saved.get(key, _ABSENT), given.get(key, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += compare_configs(old, new, path, ignore)
        elif _plain(old) != _plain(new):
            lines.append(f"{path}: checkpoint has {_show(old)}, input has {_show(new)}")
    return lines


_ABSENT = object()


def _plain(value: Any) -> Any:
    """JSON knows no tuples: a configuration that went through a file holds lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _show(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(_plain(value), default=repr)


def _encode(step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> bytes:
    # Copies: tensors that share memory (views of one flat buffer, tied weights) have to become independent.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(tensors.items())}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "info": json.dumps({"step": step, **info}),
    }
    return safetensors.torch.save(copies, {**metadata, "sha256": _checksum(copies, metadata)})


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(metadata.items()):
        digest.update(json.dumps([key, value]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _metadata(data: bytes, path: Path) -> dict[str, str]:
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        metadata = header["__metadata__"]
        return {key: str(value) for key, value in metadata.items()}
    except (
        struct.error,
        ValueError,
        OverflowError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        reason = "the header cannot be read: truncated, or not a checkpoint" if data else "the file is empty"
        raise DamagedCheckpointError(reason, where=str(path)) from error


def _refuse_pickle(data: bytes, path: Path) -> None:
    archive = data.startswith(b"PK\x03\x04")
    # A safetensors file has its opening brace at byte 8, where a pickle has the size of its first frame.
    pickle = data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and data[8:9] != b"{"
    if archive or pickle or path.suffix in (".pt", ".pth", ".pkl"):
        raise CheckpointError(
            "is a Python pickle; loading could run code hidden in it, so it is not loaded",
            where=str(path),
            remedy=_CONVERT.format(name=path.name),
        )


def _refuse_newer(metadata: Mapping[str, str], path: Path) -> None:
    version = metadata.get("version", "")
    if version.isdecimal() and int(version) > VERSION:
        raise CheckpointError(
            f"has format version {version}, this program reads up to version {VERSION}",
            where=str(path),
            remedy="update the program to the version that wrote it",
        )


def _steps(folder: Path, prefix: str) -> list[int]:
    matches = (_NUMBERED.fullmatch(path.name) for path in folder.glob(f"*{SUFFIX}") if not path.is_symlink())
    return [int(match["step"]) for match in matches if match and match["prefix"] == prefix]


def _of_prefix(prefix: Path) -> list[Path]:
    """The files of a prefix: first the one that pointer or link name, then the earlier ones, then the rest."""
    newest = _named_newest(prefix)
    folder = prefix.parent if newest is None else newest.parent
    files = {step: folder / f"{prefix.name}-{step}{SUFFIX}" for step in _steps(folder, prefix.name)}
    if newest is not None:
        match = _NUMBERED.fullmatch(newest.name)
        assert match is not None
        files.setdefault(int(match["step"]), newest)
        last = int(match["step"])
    else:
        last = max(files, default=0)
    return [files[step] for step in sorted(files, key=lambda step: (step > last, -step))]


def _named_newest(prefix: Path) -> Path | None:
    for pointer in dict.fromkeys((Path(POINTER), prefix.parent / POINTER)):
        target = _pointed(pointer)
        # The pointer may belong to another run in the same folder.
        match = None if target is None else _NUMBERED.fullmatch(target.name)
        if target is not None and match and match["prefix"] == prefix.name:
            return target
    link = prefix.with_name(prefix.name + SUFFIX)
    if link.is_symlink():
        target = link.parent / link.readlink()
        return target if _NUMBERED.fullmatch(target.name) else None
    return None


def _pointed(pointer: Path) -> Path | None:
    try:
        text = pointer.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return pointer.parent / text if text else None


def _in_folder(folder: Path) -> list[Path]:
    target = _pointed(folder / POINTER)
    match = None if target is None else _NUMBERED.fullmatch(target.name)
    if target is not None and match:
        return _of_prefix(target.parent / match["prefix"])
    names = (_NUMBERED.fullmatch(path.name) for path in folder.glob(f"*{SUFFIX}") if not path.is_symlink())
    prefixes = sorted({name["prefix"] for name in names if name})
    if len(prefixes) == 1:
        return _of_prefix(folder / prefixes[0])
    reason = f"has checkpoints of several runs: {', '.join(prefixes)}" if prefixes else "has no checkpoint"
    remedy = "name the prefix of one of them" if prefixes else "name the folder in which the training ran"
    raise CheckpointError(f"the folder {reason}", where=str(folder), remedy=remedy)


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob(f"*{SUFFIX}") if not path.is_symlink())
    if not names:
        return f"{folder.absolute()} has no checkpoint"
    shown = ", ".join(names[-5:])
    return f"{folder.absolute()} has {shown}"


def _no_whole_checkpoint(where: Path, damaged: list[DamagedCheckpointError]) -> CheckpointError:
    listing = "".join(f"\n  {error.where}: {error.reason}" for error in damaged)
    others = _listing(Path(damaged[0].where).parent)
    single = len(damaged) == 1
    return CheckpointError(
        f"{'the checkpoint is' if single else 'all checkpoints are'} damaged:{listing}",
        where=str(where),
        remedy=f"go on from another checkpoint ({others}), or train anew",
    )
