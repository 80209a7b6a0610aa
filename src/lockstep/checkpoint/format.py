"""The file of a checkpoint: one safetensors file, verified when it is read, which never runs code.

It holds tensors (`model.*`, `optimizer.*`, ...) and, as JSON in the file's metadata, everything else that a restart
needs. A checksum over all of it tells a damaged file from a whole one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lockstep.errors import CONTENT_ERRORS, CheckpointError, in_one_line, taken_apart

FORMAT = "lockstep-checkpoint"
VERSION = 1
_LAST_STEP, _DIGITS = 10**15, 9

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
        checksum = _checksum(tensors, {key: value for key, value in metadata.items() if key != "sha256"})
    except (SafetensorError, *CONTENT_ERRORS) as error:
        reason = f"the tensors cannot be read ({in_one_line(error)})"
        raise DamagedCheckpointError(reason, where=str(path)) from error
    if metadata.get("sha256") != checksum:
        raise DamagedCheckpointError("the checksum does not match the contents", where=str(path))
    with taken_apart(path):
        step, info = _step_and_info(metadata["info"])
        return Checkpoint(step, tensors, info, path)


def _step_and_info(text: str) -> tuple[int, dict[str, Any]]:
    """A checkpoint's JSON, of which the parts that others rely on are what they should be."""
    info = json.loads(text)
    step = info.pop("step")
    if type(step) is not int or not 0 <= step <= _LAST_STEP:
        raise ValueError(f"{str(step)[:_DIGITS]!r} is not the number of a step")
    for key in ("input", "stream", "pace", "spectral", "aliases"):
        if not isinstance(info.get(key, {}), dict | None):
            raise TypeError(f"{key} is not an object")
    return step, info


@dataclass(frozen=True)
class Frozen:
    """A copy of what a checkpoint will hold: training may go on while it is written."""

    step: int
    tensors: Mapping[str, Tensor]
    text: str


def freeze(step: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> Frozen:
    """Copy tensors and JSON as they are now.

    Tensors that share memory (views of one flat buffer, tied weights) become independent.
    """
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(tensors.items())}
    return Frozen(step, copies, json.dumps({"step": step, **info}))


def encode(frozen: Frozen) -> bytes:
    """The content of the file."""
    metadata = {"format": FORMAT, "version": str(VERSION), "info": frozen.text}
    return safetensors.torch.save(dict(frozen.tensors), {**metadata, "sha256": _checksum(frozen.tensors, metadata)})


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
    except (struct.error, *CONTENT_ERRORS) as error:
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
    if version.isdecimal() and (len(version) > _DIGITS or int(version) > VERSION):
        raise CheckpointError(
            f"has format version {version[:_DIGITS]}, this program reads up to version {VERSION}",
            where=str(path),
            remedy="update the program to the version that wrote it",
        )
