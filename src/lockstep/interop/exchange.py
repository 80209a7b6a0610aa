"""DeePMD-kit's exchange container (`.dp`): an HDF5 file with a JSON tree whose `@variables` are datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lockstep.errors import CONTENT_ERRORS, CheckpointError, in_one_line
from lockstep.files import written_whole
from lockstep.memory import free_memory

Tree = dict[str, Any]
_LARGE = 100_000_000
"""Bytes of an array for which nobody has to ask whether there is room."""
_WIDEST = 16
"""Bytes of a number."""
_MOST_PACKED = 2000
"""How often the bytes of an array that a compressed data set may have; a thousand times is the most that any has."""


def read_tree(path: str | Path) -> Tree:
    """Read the tree with its arrays in place. Nothing in the file is ever executed."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError("there is no such model file", where=str(path), remedy="check the path")
    try:
        with h5py.File(path, "r") as file:
            tree = json.loads(file.attrs["json"])
            # Read once each, however often a tree refers to it.
            numbers = cache(lambda name: _numbers(file, name))
            return _checked(_with_variables(tree, numbers))
    except (OSError, *CONTENT_ERRORS) as error:
        raise CheckpointError(
            f"is not a model in DeePMD-kit's exchange format, or is damaged ({in_one_line(error)})",
            where=str(path),
            remedy="export it again: `dp freeze -o model.dp` here, `dp convert-backend` in DeePMD-kit",
        ) from error


def _checked(tree: Any) -> Tree:
    if not isinstance(tree, dict):
        raise TypeError("its description is not an object")
    return tree


def _numbers(file: h5py.File, name: Any) -> np.ndarray:
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise TypeError(f"{name} is not an array")
    if dataset.dtype.kind not in "fiub" or dataset.dtype.itemsize > _WIDEST:
        raise ValueError(f"{name} holds values of type {dataset.dtype}, not real numbers")
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > _MOST_PACKED * stored or (dataset.nbytes > _LARGE and dataset.nbytes > free_memory()):
        raise ValueError(f"{name} would have shape {dataset.shape}, {dataset.nbytes} bytes; the file has {stored}")
    return np.asarray(dataset[()])


def write_tree(path: str | Path, tree: Tree) -> None:
    """Write a tree; the file appears whole or not at all."""
    with written_whole(path) as temporary, h5py.File(temporary, "w") as file:
        count = 0

        def store(array: Any) -> str:
            nonlocal count
            name = f"variable_{count:04d}"
            count += 1
            file.create_dataset(name, data=array)
            return f"/{name}"

        file.attrs["json"] = json.dumps(_with_variables(tree, store), separators=(",", ":"))


def _with_variables(node: Any, replace: Callable[[Any], Any]) -> Any:
    """Copy a tree with every value inside an `@variables` entry replaced; `null` stays."""
    if isinstance(node, list):
        return [_with_variables(item, replace) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _replaced(item, replace) for name, item in value.items()}
        if key == "@variables"
        else _with_variables(value, replace)
        for key, value in node.items()
    }


def _replaced(item: Any, replace: Callable[[Any], Any]) -> Any:
    if item is None:
        return None
    if isinstance(item, list):
        return [_replaced(each, replace) for each in item]
    return replace(item)


def is_exchange_file(path: str | Path) -> bool:
    """Whether the file is an HDF5 container, whatever its name."""
    return os.path.isfile(path) and h5py.is_hdf5(path)
