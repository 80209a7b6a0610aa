"""Descriptors to and from DeePMD-kit's description of a model: one exchange for each type, in one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.config import Cutoff, SeE2AConfig
from lockstep.config.section import Section
from lockstep.errors import CheckpointError
from lockstep.geometry import RowScale
from lockstep.interop.exchange import Tree
from lockstep.interop.trees import (
    array_of,
    collection_tree,
    embedding_net_tree,
    load_nets,
    precision_name,
    refuse_unsupported,
)
from lockstep.network.descriptors import Descriptor
from lockstep.network.descriptors.se_e2_a import NetsByType


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

    @abstractmethod
    def section(self, tree: Tree) -> dict[str, Any]:
        """The input's `descriptor` section that the description means; what is not supported is refused."""

    @abstractmethod
    def load(self, module: Any, tree: Tree) -> tuple[RowScale, ...]:
        """Copy the weights into a descriptor of that section; the rows' scale for each of its cutoffs is returned."""


class SeE2AExchange(Exchange):
    """`se_e2_a`, which DeePMD-kit also calls `se_a`."""

    def tree(self, own: Described) -> Tree:
        config: SeE2AConfig = own.config
        return {
            "@class": "Descriptor",
            "@version": 2,
            "type": "se_e2_a",
            "axis_neuron": config.axis_neuron,
            **one_cutoff_tree(own),
            **nets_by_type_tree(own.module, config),
        }

    def section(self, tree: Tree) -> dict[str, Any]:
        refuse_unsupported(common_limits(tree))
        return {**picked(tree, SeE2AConfig), "type": "se_e2_a"}

    def load(self, module: NetsByType, tree: Tree) -> tuple[RowScale, ...]:
        load_nets(module.nets, tree["embeddings"]["networks"])
        return (row_scale(tree["@variables"]),)


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


def nets_by_type_tree(module: NetsByType, config: SeE2AConfig) -> Tree:
    nets = [embedding_net_tree(net, config.neuron, config.activation_function, config.resnet_dt) for net in module.nets]
    ndim = 1 if config.type_one_side else 2
    return {"embeddings": collection_tree(nets, ndim, module.ntypes, "embedding_network")}


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
    uniform = (
        np.ptp(mean, axis=1).max() == 0
        and np.ptp(std, axis=1).max() == 0
        and np.abs(mean[..., 1:]).max(initial=0) == 0
        and np.ptp(std[..., 1:], axis=-1).max() == 0
    )
    if not uniform:
        raise CheckpointError("the rows' mean and spread differ between slots, which is not supported yet")
    columns = (mean[:, 0, 0], std[:, 0, 0], std[:, 0, 1])
    return RowScale(*(torch.tensor(column, dtype=torch.float64) for column in columns))


EXCHANGES: dict[str, Exchange] = {"se_e2_a": SeE2AExchange()}
"""How descriptors of each type of the input file are written."""
NAMES = {"se_a": "se_e2_a"}
"""Other names in DeePMD-kit's descriptions."""


def descriptor_tree(own: Described) -> Tree:
    return EXCHANGES[own.config.type].tree(own)


def descriptor_section(tree: Tree) -> dict[str, Any]:
    return _exchange(tree).section(tree)


def load_descriptor(module: Descriptor, tree: Tree) -> tuple[RowScale, ...]:
    return _exchange(tree).load(module, tree)


def _exchange(tree: Tree) -> Exchange:
    name = str(NAMES.get(tree["type"], tree["type"]))
    refuse_unsupported([("descriptor type", name, tuple(EXCHANGES))])
    return EXCHANGES[name]
