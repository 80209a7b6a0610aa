"""Descriptors to and from DeePMD-kit's description of a model: one exchange for each type, in one table."""

from __future__ import annotations

from typing import Any, cast

from lockstep.config import SeAttenConfig, SeAttenV2Config, SeE2AConfig, SeE2RConfig
from lockstep.config.descriptors import OTHER_NAMES
from lockstep.geometry import RowScale
from lockstep.interop.atten import SeAttenExchange
from lockstep.interop.described import Described, Exchange, common_limits, one_cutoff_tree, picked, row_scale
from lockstep.interop.exchange import Tree
from lockstep.interop.trees import collection_tree, embedding_net_tree, load_nets, refuse_unsupported
from lockstep.network.descriptors import Descriptor
from lockstep.network.descriptors.hybrid import Hybrid
from lockstep.network.descriptors.se_e2_a import NetsByType


class SeE2AExchange(Exchange):
    """`se_e2_a`, which DeePMD-kit also calls `se_a`."""

    def tree(self, own: Described) -> Tree:
        return {
            "@class": "Descriptor",
            "@version": 2,
            "type": "se_e2_a",
            "axis_neuron": own.config.axis_neuron,
            **one_cutoff_tree(own),
            **nets_by_type_tree(own.module, own.config),
        }

    def section(self, tree: Tree) -> dict[str, Any]:
        refuse_unsupported(common_limits(tree))
        return {**picked(tree, SeE2AConfig), "type": "se_e2_a"}

    def load(self, module: NetsByType, tree: Tree) -> tuple[RowScale, ...]:
        load_nets(module.nets, tree["embeddings"]["networks"])
        return (row_scale(tree["@variables"]),)


class SeE2RExchange(Exchange):
    """`se_e2_r`, which DeePMD-kit also calls `se_r`. Its rows have one component."""

    def tree(self, own: Described) -> Tree:
        tree = {
            "@class": "Descriptor",
            "@version": 2,
            "type": "se_r",
            **one_cutoff_tree(own),
            **nets_by_type_tree(own.module, own.config),
        }
        tree["@variables"] = {name: value[..., :1] for name, value in tree["@variables"].items()}
        return tree

    def misread(self, config: SeE2RConfig, ntypes: int) -> str:
        if config.type_one_side or ntypes == 1:
            return ""
        return (
            "se_e2_r with type_one_side = false has a net for each pair of types; DeePMD-kit's PyTorch backend takes it"
            " for one with a net for each type and computes other energies without a word; its NumPy backend refuses it"
        )

    def section(self, tree: Tree) -> dict[str, Any]:
        refuse_unsupported(common_limits(tree))
        return {**picked(tree, SeE2RConfig), "type": "se_e2_r"}

    def load(self, module: NetsByType, tree: Tree) -> tuple[RowScale, ...]:
        load_nets(module.nets, tree["embeddings"]["networks"])
        return (row_scale(tree["@variables"]),)


def nets_by_type_tree(module: NetsByType, config: SeE2AConfig | SeE2RConfig) -> Tree:
    nets = [embedding_net_tree(net, config.neuron, config.activation_function, config.resnet_dt) for net in module.nets]
    ndim = 1 if config.type_one_side else 2
    return {"embeddings": collection_tree(nets, ndim, module.ntypes, "embedding_network")}


class HybridExchange(Exchange):
    """`hybrid`: a list of others."""

    def tree(self, own: Described) -> Tree:
        members = [
            descriptor_tree(Described(config, module, (cutoff,), (scale,), own.type_map))
            for config, module, cutoff, scale in zip(
                own.config.parts(), own.module.members, own.cutoffs, own.scales, strict=True
            )
        ]
        return {"@class": "Descriptor", "@version": 1, "type": "hybrid", "list": members}

    def section(self, tree: Tree) -> dict[str, Any]:
        return {"type": "hybrid", "list": [descriptor_section(member) for member in tree["list"]]}

    def load(self, module: Hybrid, tree: Tree) -> tuple[RowScale, ...]:
        members = zip(module.members, tree["list"], strict=True)
        return tuple(scale for member, own in members for scale in load_descriptor(cast(Descriptor, member), own))


EXCHANGES: dict[str, Exchange] = {
    "se_e2_a": SeE2AExchange(),
    "se_e2_r": SeE2RExchange(),
    "se_atten": SeAttenExchange(SeAttenConfig, "dpa1"),
    "se_atten_v2": SeAttenExchange(SeAttenV2Config, "se_atten_v2"),
    "hybrid": HybridExchange(),
}
"""How descriptors of each type of the input file are written."""
NAMES = dict(OTHER_NAMES)
"""Other names in DeePMD-kit's descriptions."""


def descriptor_tree(own: Described) -> Tree:
    return EXCHANGES[own.config.type].tree(own)


def misread_elsewhere(config: Any, ntypes: int) -> str:
    """What DeePMD-kit would make of a model's descriptor that it is not; empty where it reads it well."""
    known = (part for part in config.parts() if part.type in EXCHANGES)
    return next(filter(None, (EXCHANGES[part.type].misread(part, ntypes) for part in known)), "")


def descriptor_section(tree: Tree) -> dict[str, Any]:
    return _exchange(tree).section(tree)


def load_descriptor(module: Descriptor, tree: Tree) -> tuple[RowScale, ...]:
    return _exchange(tree).load(module, tree)


def _exchange(tree: Tree) -> Exchange:
    name = NAMES.get(str(tree["type"]), str(tree["type"]))
    refuse_unsupported([("descriptor type", name, tuple(EXCHANGES))])
    return EXCHANGES[name]
