"""The tensors of a TorchScript archive (`.pth`), read without running any of the code in it.

An archive is a zip file: raw numbers, a pickle that says how they hang together, and code. Only the first two are
looked at, and of the pickle only what describes modules and tensors: every class of the archive becomes a record of its
attributes, and anything else is refused.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import CONTENT_ERRORS, CheckpointError, in_one_line

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Record:
    """A module or object of the archive: its attributes, and nothing that could be called."""

    def __init__(self, *arguments: Any) -> None:
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {"state": state}


def read_archive(path: Path) -> Record:
    """The object that the archive holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
            with archive.open(name) as file:
                found = _Reader(file, lambda key: _member(archive, f"{name.removesuffix('.pkl')}/{key}")).load()
    except (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, OSError, *CONTENT_ERRORS) as error:
        raise CheckpointError(f"cannot be read as a frozen model: {in_one_line(error)}", where=str(path)) from error
    if not isinstance(found, Record):
        raise CheckpointError("is not a frozen model: it holds no module", where=str(path))
    return found


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    # What PyTorch writes is never compressed; a small file could unfold to any size.
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)


def is_archive(path: Path) -> bool:
    """Whether a file is a TorchScript archive, whatever its name."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, *CONTENT_ERRORS) as error:
        raise CheckpointError(f"is a damaged archive: {in_one_line(error)}", where=str(path)) from error


def named_tensors(record: Record, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors below a record, by dotted name."""
    for name, value in record.attributes.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Record):
            yield from named_tensors(value, f"{prefix}{name}.")


# The one in Python: that in C reserves as much memory as a single wrong number in a file asks for.
class _Reader(pickle._Unpickler):
    """Knows tensors and records; whatever else a pickle may ask for is refused."""

    def __init__(self, file: Any, read: Callable[[str], bytes]) -> None:
        super().__init__(file)
        self._read = read
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return Record
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")):
            return _tensor if name == "_rebuild_tensor_v2" else _parameter
        if module == "torch.jit._pickle" and name.startswith(("build_", "restore_type_tag")):
            return _first
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which has no place in a model")

    def persistent_load(self, pid: Any) -> Tensor:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError("it refers to something other than numbers")
        if key not in self._storages:
            data = bytearray(self._read(str(key)))
            empty = torch.empty(0, dtype=dtype)
            self._storages[key] = torch.frombuffer(data, dtype=dtype) if data else empty
        return self._storages[key]


def _tensor(storage: Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    view = torch.as_strided(storage, tuple(size), tuple(stride), offset)
    if view.numel() > storage.numel():
        raise pickle.UnpicklingError(f"a tensor of shape {tuple(size)} has {storage.numel()} numbers")
    return view.clone()


def _parameter(data: Tensor, *_: Any) -> Tensor:
    return data


def _first(value: Any, *_: Any) -> Any:
    return value
