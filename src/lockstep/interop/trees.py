"""Nets and layers in DeePMD-kit's description of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.errors import CheckpointError
from lockstep.interop.exchange import Tree
from lockstep.network.mlp import MLP, Layer

Limit = tuple[str, Any, Sequence[Any]]
"""A setting's name, its value in the file, and the values that are supported."""


def refuse_unsupported(limits: Iterable[Limit]) -> None:
    for name, value, allowed in limits:
        if value not in allowed:
            raise CheckpointError(
                f"{name} = {value!r} is not supported yet",
                remedy="native models can be read: those of se_e2_a, se_e2_r, se_atten and dpa1 without attention, and "
                "hybrids of them, with an energy fitting net",
            )


def collection_tree(networks: Sequence[Tree], ndim: int, ntypes: int, kind: str) -> Tree:
    """Nets of one kind, numbered by `ndim` types."""
    return {
        "@class": "NetworkCollection",
        "@version": 1,
        "ndim": ndim,
        "ntypes": ntypes,
        "network_type": kind,
        "networks": list(networks),
    }


def embedding_net_tree(net: torch.nn.Module, neuron: Sequence[int], activation: str, resnet_dt: bool) -> Tree:
    assert isinstance(net, MLP)
    return {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": net.layers[0].n_in,
        "neuron": list(neuron),
        "activation_function": activation,
        "resnet_dt": resnet_dt,
        "bias": True,
        "precision": net_precision(net),
        "layers": layer_trees(net),
    }


def fitting_net_tree(net: torch.nn.Module, neuron: Sequence[int], activation: str, resnet_dt: bool) -> Tree:
    assert isinstance(net, MLP)
    return {
        "@class": "FittingNetwork",
        "@version": 1,
        "in_dim": net.layers[0].n_in,
        "out_dim": 1,
        "neuron": list(neuron),
        "activation_function": activation,
        "resnet_dt": resnet_dt,
        "precision": net_precision(net),
        "bias_out": True,
        "layers": layer_trees(net),
    }


def layer_trees(net: MLP) -> list[Tree]:
    return [_layer_tree(layer) for layer in net.layers if isinstance(layer, Layer)]


def _layer_tree(layer: Layer) -> Tree:
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": True,
        "use_timestep": layer.idt is not None,
        "activation_function": layer.activation_name,
        "resnet": layer.residual,
        "precision": precision_name(layer.weight.dtype),
        "trainable": layer.weight.requires_grad,
        "@variables": {
            "w": array_of(layer.weight),
            "b": array_of(layer.bias),
            "idt": None if layer.idt is None else array_of(layer.idt),
        },
    }


def net_precision(net: MLP) -> str:
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    return precision_name(layer.weight.dtype)


def precision_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def array_of(tensor: torch.Tensor) -> NDArray:
    return tensor.detach().cpu().numpy()


def load_nets(nets: Iterable[torch.nn.Module], trees: list[Tree]) -> None:
    for net, tree in zip(nets, trees, strict=True):
        assert isinstance(net, MLP)
        for layer, layer_tree in zip(net.layers, tree["layers"], strict=True):
            assert isinstance(layer, Layer)
            variables = layer_tree["@variables"]
            for parameter, name in ((layer.weight, "w"), (layer.bias, "b"), (layer.idt, "idt")):
                if parameter is not None:
                    load_weight(parameter, variables[name], name)


def load_weight(parameter: torch.nn.Parameter, value: Any, name: str) -> None:
    array = np.asarray(value)
    # Vectors may come as a row; a matrix of another shape belongs to another net, even if it has as many numbers.
    wanted = tuple(parameter.shape)
    if array.shape != wanted and (array.ndim != 2 or array.shape != (1, *wanted)):
        raise CheckpointError(f"a layer's {name} has shape {array.shape}, expected {wanted}")
    parameter.copy_(torch.from_numpy(array).reshape(wanted))
