"""Descriptors with a type embedding in DeePMD-kit's description of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.config import SeAttenConfig, SeAttenV2Config
from lockstep.geometry import RowScale
from lockstep.interop.described import Described, Exchange, common_limits, one_cutoff_tree, picked, row_scale
from lockstep.interop.exchange import Tree
from lockstep.interop.trees import (
    array_of,
    collection_tree,
    embedding_net_tree,
    load_nets,
    load_weight,
    precision_name,
    refuse_unsupported,
)
from lockstep.network.descriptors.se_atten import SeAtten
from lockstep.network.descriptors.type_embedding import TypeEmbedding

_SETTINGS = (
    *("tebd_dim", "attn", "attn_layer", "attn_dotr", "scaling_factor", "normalize", "temperature", "trainable_ln"),
    *("concat_output_tebd", "use_econf_tebd", "use_tebd_bias"),
)
_LN_EPS = 1e-5
"""What DeePMD-kit takes where none is given."""


class SeAttenExchange(Exchange):
    """`se_atten` (which DeePMD-kit writes as `dpa1`) and `se_atten_v2`, without attention layers."""

    def __init__(self, section: type[SeAttenConfig] | type[SeAttenV2Config], written: str) -> None:
        self._section, self._written = section, written

    def tree(self, own: Described) -> Tree:
        config, module = own.config, own.module
        tree = {
            "@class": "Descriptor",
            "@version": 2,
            "type": self._written,
            "ntypes": len(own.type_map),
            "axis_neuron": config.axis_neuron,
            **{name: getattr(config, name) for name in _SETTINGS},
            "attn_mask": False,
            "ln_eps": _ln_eps(own),
            **one_cutoff_tree(own),
            "embeddings": _net_tree(module.net, own),
            "attention_layers": _no_attention(own),
            "type_embedding": type_embedding_tree(module.type_embedding, own),
        }
        if isinstance(config, SeAttenConfig):
            tree["tebd_input_mode"] = "strip" if config.stripped else "concat"
            tree["smooth_type_embedding"] = config.smooth
        if module.strip_net is not None:
            tree["embeddings_strip"] = _net_tree(module.strip_net, own)
        return tree

    def section(self, tree: Tree) -> dict[str, Any]:
        refuse_unsupported(
            [
                *common_limits(tree),
                ("descriptor.attn_layer", tree["attn_layer"], (0,)),
                ("descriptor.lmax", tree.get("lmax", 1), (1,)),
                ("descriptor.attn_mask", tree.get("attn_mask", False), (False,)),
            ]
        )
        section = {**picked(tree, self._section), "type": self._section.model_fields["type"].default}
        # Files of the first version have no such key, and always a bias.
        return {"use_tebd_bias": True, **section, "sel": int(np.sum(tree["sel"]))}

    def load(self, module: SeAtten, tree: Tree) -> tuple[RowScale, ...]:
        load_nets([module.net], tree["embeddings"]["networks"])
        if module.strip_net is not None:
            load_nets([module.strip_net], tree["embeddings_strip"]["networks"])
        (layer,) = tree["type_embedding"]["embedding"]["layers"]
        load_weight(module.type_embedding.weight, layer["@variables"]["w"], "w")
        if module.type_embedding.bias is not None:
            load_weight(module.type_embedding.bias, layer["@variables"]["b"], "b")
        return (row_scale(tree["@variables"]),)


def _ln_eps(own: Described) -> float:
    return _LN_EPS if own.config.ln_eps is None else float(own.config.ln_eps)


def _net_tree(net: Any, own: Described) -> Tree:
    config = own.config
    tree = embedding_net_tree(net, config.neuron, config.activation_function, config.resnet_dt)
    return collection_tree([tree], 0, len(own.type_map), "embedding_network")


def _no_attention(own: Described) -> Tree:
    config = own.config
    return {
        "@class": "NeighborGatedAttention",
        "@version": 1,
        "layer_num": 0,
        "nnei": own.cutoffs[0].n_slots,
        "embed_dim": config.neuron[-1],
        "hidden_dim": config.attn,
        "dotr": config.attn_dotr,
        "do_mask": False,
        "scaling_factor": config.scaling_factor,
        "normalize": config.normalize,
        "temperature": config.temperature,
        "trainable_ln": config.trainable_ln,
        "ln_eps": _ln_eps(own),
        "precision": precision_name(own.module.dtype),
        "attention_layers": [],
    }


def type_embedding_tree(module: TypeEmbedding, own: Described) -> Tree:
    config = own.config
    n_in, width = module.weight.shape
    common = {"precision": precision_name(own.module.dtype), "activation_function": "Linear", "resnet_dt": False}
    layer = {
        "@class": "Layer",
        "@version": 2,
        "bias": config.use_tebd_bias,
        "use_timestep": False,
        "activation_function": "linear",
        "resnet": True,
        "precision": common["precision"],
        "trainable": config.trainable,
        "@variables": {
            "w": array_of(module.weight),
            "b": None if module.bias is None else array_of(module.bias),
            "idt": None,
        },
    }
    net = {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": n_in,
        "neuron": [width],
        "bias": config.use_tebd_bias,
        "layers": [layer],
        **common,
    }
    return {
        "@class": "TypeEmbedNet",
        "@version": 2,
        "ntypes": len(own.type_map),
        "neuron": [width],
        "trainable": config.trainable,
        "padding": True,
        "use_econf_tebd": config.use_econf_tebd,
        "use_tebd_bias": config.use_tebd_bias,
        "type_map": list(own.type_map),
        "embedding": net,
        **common,
    }
