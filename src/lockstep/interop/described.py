"""What DeePMD-kit's descriptions of all descriptors have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.config import Cutoff
from lockstep.config.section import Section
from lockstep.errors import CheckpointError
from lockstep.geometry import RowScale
from lockstep.interop.exchange import Tree
from lockstep.interop.trees import array_of, precision_name


@dataclass(frozen=True)
class Described:
    """A descriptor with the constants of its geometry."""

    config: Any
    module: Any
    cutoffs: tuple[Cutoff, ...]
    scales: tuple[RowScale, ...]
    type_map: tuple[str, ...]


class Exchange(ABC):
    """How descriptors of one type are written and read."""

    @abstractmethod
    def tree(self, own: Described) -> Tree:
        """DeePMD-kit's description."""

    def misread(self, config: Any, ntypes: int) -> str:
        """What a part of DeePMD-kit makes of such a descriptor that it is not; empty where all of it reads it well."""
        return ""

    @abstractmethod
    def section(self, tree: Tree) -> dict[str, Any]:
        """The input's `descriptor` section that the description means; what is not supported is refused."""

    @abstractmethod
    def load(self, module: Any, tree: Tree) -> tuple[RowScale, ...]:
        """Copy the weights into a descriptor of that section; the rows' scale for each of its cutoffs is returned."""


def common_limits(tree: Tree) -> list[tuple[str, Any, tuple[Any, ...]]]:
    return [
        ("descriptor.compress", tree.get("compress"), (None,)),
        ("descriptor.spin", tree.get("spin"), (None,)),
        ("use_exp_switch", tree.get("env_mat", {}).get("use_exp_switch", False), (False,)),
    ]


def picked(tree: Tree, section: type[Section]) -> dict[str, Any]:
    """The settings of a section that a description has."""
    # DeePMD-kit writes null for options left at their default.
    return {name: tree[name] for name in section.model_fields if tree.get(name) is not None}


def one_cutoff_tree(own: Described) -> Tree:
    """What the descriptions of all descriptors with one cutoff have in common."""
    config, (cutoff,), (scale,) = own.config, own.cutoffs, own.scales
    mean, std = row_constants(scale, cutoff)
    return {
        "rcut": config.rcut,
        "rcut_smth": config.rcut_smth,
        "sel": [cutoff.shared] if cutoff.shared is not None else list(cutoff.sel),
        "neuron": list(config.neuron),
        "resnet_dt": config.resnet_dt,
        "set_davg_zero": config.set_davg_zero,
        "activation_function": config.activation_function,
        "precision": precision_name(own.module.dtype),
        "env_mat": {
            "rcut": config.rcut,
            "rcut_smth": config.rcut_smth,
            "protection": config.env_protection,
            "use_exp_switch": False,
        },
        "exclude_types": [list(pair) for pair in config.exclude_types],
        "env_protection": config.env_protection,
        "@variables": {"davg": mean, "dstd": std},
        "type_map": list(own.type_map),
        "trainable": config.trainable,
        "type_one_side": config.type_one_side,
        "spin": None,
    }


def row_constants(scale: RowScale, cutoff: Cutoff) -> tuple[NDArray, NDArray]:
    """Mean and spread of the rows, as often as there are slots."""
    mean = np.zeros((cutoff.ntypes, cutoff.n_slots, 4))
    std = np.empty_like(mean)
    mean[..., 0] = array_of(scale.mean)[:, None]
    std[..., 0] = array_of(scale.std_radial)[:, None]
    std[..., 1:] = array_of(scale.std_angular)[:, None, None]
    return mean, std


def row_scale(variables: Tree) -> RowScale:
    mean, std = variables["davg"], variables["dstd"]
    radial_only = std.shape[-1] == 1
    uniform = (
        np.ptp(mean, axis=1).max() == 0
        and np.ptp(std, axis=1).max() == 0
        and (radial_only or (np.abs(mean[..., 1:]).max() == 0 and np.ptp(std[..., 1:], axis=-1).max() == 0))
    )
    if not uniform:
        raise CheckpointError("the rows' mean and spread differ between slots, which is not supported yet")
    columns = (mean[:, 0, 0], std[:, 0, 0], std[:, 0, 0 if radial_only else 1])
    return RowScale(*(torch.tensor(column, dtype=torch.float64) for column in columns))
