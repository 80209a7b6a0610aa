"""From a micro-batch to what DeePMD-kit's models and losses take: dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lockstep.data import ATOMS, Array, MicroBatch
from lockstep.device import upload
from lockstep.tasks.deepmd.branches import Branch

Inputs = dict[str, Tensor | None]
Labels = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """An array that a branch wants, after one of DeePMD-kit's requirements.

    Attributes:
        array: what the data package is asked for.
        default: what fills it where a system has none.
        counts_as_found: whether the default is as good as data.
    """

    array: Array
    default: Any
    counts_as_found: bool

    @classmethod
    def after(cls, item: Any, selected: tuple[int, ...] = ()) -> Wanted:
        """The description of one of DeePMD-kit's requirements; atoms of `selected` types alone may have values."""
        hessian = item.special_shape == "hessian" or item.key == "hessian"
        return cls(
            Array(
                item.key,
                _files(item.key),
                tail=(3, ATOMS, 3) if hessian else (item.ndof,),
                atomic=hessian or item.atomic,
                required=item.must,
                repeat=item.repeat,
                selected=selected if item.key.startswith("atom") else (),
            ),
            item.default,
            item.source_policy == "default",
        )

    def tensor(self, batch: MicroBatch, device: str) -> tuple[Tensor, float]:
        """The values, [B, ...], and 1 where they are data, or a default that is as good, and 0 otherwise."""
        given = batch.labels.get(self.array.name)
        if given is None:
            given = self._filled(*batch.types.shape)
            found = float(self.counts_as_found)
        else:
            found = 1.0
        if self.array.name == "hessian" or not self.array.atomic:
            given = given.reshape(len(batch.frames), -1)
        return upload(given, device), found

    def _filled(self, frames: int, atoms: int) -> np.ndarray:
        shape = (frames, *self.array.shape(atoms))
        filled = np.broadcast_to(np.asarray(self.default, dtype=np.float64), shape)
        return self.array.finished(filled.copy())


def _files(key: str) -> tuple[str, ...]:
    """DeePMD-kit takes a file of either spelling for a quantity of atoms."""
    return (f"{key}.npy", f"atomic_{key[5:]}.npy") if key.startswith("atom_") else (f"{key}.npy",)


def _known_as(key: str) -> str:
    """What losses and statistics call a quantity of atoms, whatever the requirement calls it."""
    return f"atom_{key[7:]}" if key.startswith("atomic_") else key


def merged_arrays(branches: Iterable[Branch]) -> tuple[Array, ...]:
    """All that some branches want, each array once."""
    arrays: dict[str, Array] = {}
    for branch in branches:
        for item in (*branch.labels, *branch.inputs):
            array = Wanted.after(item, selected_types(branch)).array
            known = arrays.get(array.name)
            arrays[array.name] = array if known is None or array.required else known
    return tuple(arrays.values())


def selected_types(branch: Branch) -> tuple[int, ...]:
    """The types that the model has an output for, where it leaves some out."""
    left_out = branch.params.get("atom_exclude_types") or []
    types = range(len(branch.params["type_map"]))
    return tuple(number for number in types if number not in left_out) if left_out else ()


class Translator:
    """Makes a branch's inputs and labels of micro-batches, on a device."""

    def __init__(self, branch: Branch, device: str) -> None:
        self._inputs = [Wanted.after(item) for item in branch.inputs]
        self._labels = [Wanted.after(item) for item in branch.labels]
        self._ntypes = len(branch.params["type_map"])
        self._device = device

    def inputs(self, batch: MicroBatch) -> Inputs:
        """The arguments of the model."""
        frames = len(batch.types)
        inputs: Inputs = {
            "coord": self._tensor(batch.coord),
            "atype": self._tensor(batch.types),
            "box": None if batch.cell is None else self._tensor(batch.cell.reshape(frames, 9)),
            "do_atomic_virial": False,  # type: ignore[dict-item]
            "fparam": None,
            "aparam": None,
            "charge_spin": None,
        }
        for wanted in self._inputs:
            tensor, found = wanted.tensor(batch, self._device)
            if found or wanted.array.atomic:
                inputs[wanted.array.name] = tensor
        return inputs

    def labels(self, batch: MicroBatch) -> Labels:
        """The labels of the loss, and for each whether it was found."""
        labels: Labels = {}
        for wanted in self._labels:
            name = _known_as(wanted.array.name)
            labels[name], found = wanted.tensor(batch, self._device)
            # Losses multiply their prefactors by it, and so round them to this type.
            labels[f"find_{name}"] = np.float32(found)
        return labels

    def statistics(self, batch: MicroBatch) -> dict[str, Any]:
        """A micro-batch as DeePMD-kit's statistics take it: inputs, labels, and how many atoms of each type."""
        inputs = {name: value for name, value in self.inputs(batch).items() if isinstance(value, Tensor)}
        counts = np.stack([(batch.types == number).sum(axis=1) for number in range(self._ntypes)], axis=1)
        real = (batch.types >= 0).sum(axis=1, keepdims=True)
        natoms = self._tensor(np.concatenate([real, real, counts], axis=1))
        counted = {"natoms": natoms, "real_natoms_vec": natoms}
        return {**self.labels(batch), **inputs, "box": inputs.get("box"), **counted}

    def _tensor(self, values: np.ndarray) -> Tensor:
        return upload(values, self._device)
