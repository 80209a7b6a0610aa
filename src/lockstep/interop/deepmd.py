"""Potentials to and from DeePMD-kit's own description of a model, so that its users' other programs can run them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from lockstep import __version__
from lockstep.config import EnergyFittingConfig, ModelConfig, SeE2AConfig
from lockstep.errors import CheckpointError
from lockstep.geometry import RowScale
from lockstep.interop.exchange import Tree, read_tree, write_tree
from lockstep.model import Potential
from lockstep.network.mlp import MLP, Layer


def save_dp(potential: Potential, path: str | Path, extra: Tree | None = None) -> None:
    """Write a potential for DeePMD-kit. Its weights are exported exactly."""
    write_tree(
        path,
        {
            "software": "lockstep",
            "version": __version__,
            "time": str(datetime.now(tz=timezone.utc)),
            "backend": "PyTorch",
            "model": _model_tree(potential),
            "model_def_script": potential.config.model_dump(mode="json"),
            "@variables": {},
            **(extra or {}),
        },
    )


def load_dp(path: str | Path) -> Potential:
    """Read a potential that DeePMD-kit, or this program, has written."""
    tree = read_tree(path)
    try:
        return _potential(tree["model"])
    except CheckpointError as error:
        raise CheckpointError(error.reason, where=str(path), remedy=error.remedy) from error
    except KeyError as error:
        raise CheckpointError(f"the model description lacks {error}", where=str(path)) from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"the model description cannot be understood: {_in_one_line(error)}"
        raise CheckpointError(reason, where=str(path)) from error


def _in_one_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}"


def _model_tree(potential: Potential) -> Tree:
    ntypes = len(potential.type_map)
    bias = _array(potential.network.bias).reshape(1, ntypes, 1)
    return {
        "@class": "Model",
        "@version": 2,
        "type": "standard",
        "type_map": list(potential.type_map),
        "atom_exclude_types": [],
        "pair_exclude_types": [],
        "rcond": potential.config.fitting_net.rcond,
        "preset_out_bias": None,
        "@variables": {"out_bias": bias, "out_std": np.ones_like(bias)},
        "descriptor": _descriptor_tree(potential),
        "fitting": _fitting_tree(potential),
    }


def _descriptor_tree(potential: Potential) -> Tree:
    config, descriptor = potential.config.descriptor, potential.network.descriptor
    ntypes = len(potential.type_map)
    mean = np.zeros((ntypes, descriptor.n_slots, 4))
    std = np.empty_like(mean)
    mean[..., 0] = _array(potential.row_mean)[:, None]
    std[..., 0] = _array(potential.row_std_radial)[:, None]
    std[..., 1:] = _array(potential.row_std_angular)[:, None, None]
    return {
        "@class": "Descriptor",
        "@version": 2,
        "type": "se_e2_a",
        "rcut": config.rcut,
        "rcut_smth": config.rcut_smth,
        "sel": list(potential.cutoff.sel),
        "neuron": list(config.neuron),
        "axis_neuron": config.axis_neuron,
        "resnet_dt": config.resnet_dt,
        "set_davg_zero": config.set_davg_zero,
        "activation_function": config.activation_function,
        "precision": _precision(descriptor.dtype),
        "embeddings": {
            "@class": "NetworkCollection",
            "@version": 1,
            "ndim": 1 if config.type_one_side else 2,
            "ntypes": ntypes,
            "network_type": "embedding_network",
            "networks": [_embedding_tree(net, config) for net in descriptor.nets],
        },
        "env_mat": {
            "rcut": config.rcut,
            "rcut_smth": config.rcut_smth,
            "protection": config.env_protection,
            "use_exp_switch": False,
        },
        "exclude_types": [list(pair) for pair in config.exclude_types],
        "env_protection": config.env_protection,
        "@variables": {"davg": mean, "dstd": std},
        "type_map": list(potential.type_map),
        "trainable": config.trainable,
        "type_one_side": config.type_one_side,
        "spin": None,
    }


def _embedding_tree(net: torch.nn.Module, config: SeE2AConfig) -> Tree:
    assert isinstance(net, MLP)
    return {
        "@class": "EmbeddingNetwork",
        "@version": 2,
        "in_dim": 1,
        "neuron": list(config.neuron),
        "activation_function": config.activation_function,
        "resnet_dt": config.resnet_dt,
        "bias": True,
        "precision": _net_precision(net),
        "layers": _layer_trees(net),
    }


def _fitting_tree(potential: Potential) -> Tree:
    config, fitting = potential.config.fitting_net, potential.network.fitting
    ntypes = len(potential.type_map)
    mean, scale = _array(fitting.parameter_mean), _array(fitting.parameter_scale)
    n = config.numb_fparam
    return {
        "@class": "Fitting",
        "@version": 4,
        "type": "ener",
        "var_name": "energy",
        "ntypes": ntypes,
        "dim_descrpt": fitting.dim_descriptor,
        "neuron": list(config.neuron),
        "resnet_dt": config.resnet_dt,
        "numb_fparam": config.numb_fparam,
        "numb_aparam": config.numb_aparam,
        "dim_case_embd": 0,
        "default_fparam": None,
        "activation_function": config.activation_function,
        "precision": _precision(fitting.dtype),
        "mixed_types": False,
        "nets": {
            "@class": "NetworkCollection",
            "@version": 1,
            "ndim": 1,
            "ntypes": ntypes,
            "network_type": "fitting_network",
            "networks": [_fitting_net_tree(net, config) for net in fitting.nets],
        },
        "rcond": config.rcond,
        "exclude_types": [],
        "@variables": {
            "bias_atom_e": np.zeros((ntypes, 1)),
            "case_embd": None,
            "fparam_avg": mean[:n] if n else None,
            "fparam_inv_std": scale[:n] if n else None,
            "aparam_avg": mean[n:] if config.numb_aparam else None,
            "aparam_inv_std": scale[n:] if config.numb_aparam else None,
        },
        "type_map": list(potential.type_map),
        "tot_ener_zero": False,
        "trainable": list(config.trainable_layers),
        "layer_name": None,
        "use_aparam_as_mask": False,
        "spin": None,
        "dim_out": 1,
        "atom_ener": list(config.atom_ener),
    }


def _fitting_net_tree(net: torch.nn.Module, config: EnergyFittingConfig) -> Tree:
    assert isinstance(net, MLP)
    return {
        "@class": "FittingNetwork",
        "@version": 1,
        "in_dim": net.layers[0].n_in,
        "out_dim": 1,
        "neuron": list(config.neuron),
        "activation_function": config.activation_function,
        "resnet_dt": config.resnet_dt,
        "precision": _net_precision(net),
        "bias_out": True,
        "layers": _layer_trees(net),
    }


def _layer_trees(net: MLP) -> list[Tree]:
    return [_layer_tree(layer) for layer in net.layers if isinstance(layer, Layer)]


def _layer_tree(layer: Layer) -> Tree:
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": True,
        "use_timestep": layer.idt is not None,
        "activation_function": layer.activation_name,
        "resnet": layer.residual,
        "precision": _precision(layer.weight.dtype),
        "trainable": layer.weight.requires_grad,
        "@variables": {
            "w": _array(layer.weight),
            "b": _array(layer.bias),
            "idt": None if layer.idt is None else _array(layer.idt),
        },
    }


def _net_precision(net: MLP) -> str:
    layer = net.layers[0]
    assert isinstance(layer, Layer)
    return _precision(layer.weight.dtype)


def _precision(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _array(tensor: torch.Tensor) -> NDArray:
    return tensor.detach().cpu().numpy()


def _potential(model: Tree) -> Potential:
    _refuse_unsupported([("model type", model.get("type"), ("standard",))])
    descriptor, fitting = model["descriptor"], model["fitting"]
    _refuse_unsupported(_limits(model, descriptor, fitting))
    potential = Potential(
        ModelConfig.model_validate(
            {
                "type_map": model["type_map"],
                "descriptor": _picked(descriptor, SeE2AConfig),
                "fitting_net": _picked(fitting, EnergyFittingConfig),
            }
        )
    )
    potential.scale = _row_scale(descriptor["@variables"])
    network = potential.network
    with torch.no_grad():
        _load_nets(network.descriptor.nets, descriptor["embeddings"]["networks"])
        _load_nets(network.fitting.nets, fitting["nets"]["networks"])
        # The bias lives at the model's output in newer files, in the fitting net in older ones.
        bias = model["@variables"]["out_bias"].reshape(-1) + fitting["@variables"]["bias_atom_e"].reshape(-1)
        network.bias.copy_(torch.from_numpy(bias))
        _load_parameter_scale(network.fitting, fitting["@variables"])
    return potential


def _picked(tree: Tree, section: type[SeE2AConfig] | type[EnergyFittingConfig]) -> Tree:
    # DeePMD-kit writes null for options left at their default.
    return {name: tree[name] for name in section.model_fields if tree.get(name) is not None}


Limit = tuple[str, Any, Sequence[Any]]
"""A setting's name, its value in the file, and the values that are supported."""


def _limits(model: Tree, descriptor: Tree, fitting: Tree) -> list[Limit]:
    return [
        ("descriptor type", descriptor.get("type"), ("se_e2_a", "se_a")),
        ("descriptor.compress", descriptor.get("compress"), (None,)),
        ("descriptor.spin", descriptor.get("spin"), (None,)),
        ("use_exp_switch", descriptor.get("env_mat", {}).get("use_exp_switch", False), (False,)),
        ("fitting type", fitting.get("type"), ("ener",)),
        ("fitting.mixed_types", fitting.get("mixed_types", False), (False,)),
        ("fitting.dim_case_embd", fitting.get("dim_case_embd", 0), (0,)),
        ("fitting.use_aparam_as_mask", fitting.get("use_aparam_as_mask", False), (False,)),
        ("fitting.exclude_types", fitting.get("exclude_types", []), ([],)),
        ("atom_exclude_types", model.get("atom_exclude_types", []), ([],)),
        ("pair_exclude_types", model.get("pair_exclude_types", []), ([],)),
    ]


def _refuse_unsupported(limits: Sequence[Limit]) -> None:
    for name, value, allowed in limits:
        if value not in allowed:
            raise CheckpointError(
                f"{name} = {value!r} is not supported yet",
                remedy="models of descriptor se_e2_a with an energy fitting net can be read",
            )


def _row_scale(variables: Tree) -> RowScale:
    mean, std = variables["davg"], variables["dstd"]
    uniform = (
        np.ptp(mean, axis=1).max() == 0
        and np.ptp(std, axis=1).max() == 0
        and np.abs(mean[..., 1:]).max() == 0
        and np.ptp(std[..., 1:], axis=-1).max() == 0
    )
    if not uniform:
        raise CheckpointError("the rows' mean and spread differ between slots, which is not supported yet")
    columns = (mean[:, 0, 0], std[:, 0, 0], std[:, 0, 1])
    return RowScale(*(torch.tensor(column, dtype=torch.float64) for column in columns))


def _load_nets(nets: torch.nn.ModuleList, trees: list[Tree]) -> None:
    for net, tree in zip(nets, trees, strict=True):
        assert isinstance(net, MLP)
        for layer, layer_tree in zip(net.layers, tree["layers"], strict=True):
            assert isinstance(layer, Layer)
            variables = layer_tree["@variables"]
            for parameter, name in ((layer.weight, "w"), (layer.bias, "b"), (layer.idt, "idt")):
                if parameter is not None:
                    _load_weight(parameter, variables[name], name)


def _load_weight(parameter: torch.nn.Parameter, value: Any, name: str) -> None:
    array = np.asarray(value)
    # Vectors may come as a row; a matrix of another shape belongs to another net, even if it has as many numbers.
    wanted = tuple(parameter.shape)
    if array.shape != wanted and (array.ndim != 2 or array.shape != (1, *wanted)):
        raise CheckpointError(f"a layer's {name} has shape {array.shape}, expected {wanted}")
    parameter.copy_(torch.from_numpy(array).reshape(wanted))


def _load_parameter_scale(fitting: Any, variables: Tree) -> None:
    for buffer, key in ((fitting.parameter_mean, "avg"), (fitting.parameter_scale, "inv_std")):
        parts = [variables.get(f"{kind}_{key}") for kind in ("fparam", "aparam")]
        kept = [np.ravel(part) for part in parts if part is not None]
        if kept:
            buffer.copy_(torch.from_numpy(np.concatenate(kept)))
