"""Potentials to and from DeePMD-kit's own description of a model, so that its users' other programs can run them."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from lockstep.config import EnergyFittingConfig, ModelConfig
from lockstep.errors import CONTENT_ERRORS, CheckpointError, UserError, in_one_line
from lockstep.interop.described import Described, picked
from lockstep.interop.descriptors import descriptor_section, descriptor_tree, load_descriptor, misread_elsewhere
from lockstep.interop.exchange import Tree, read_tree, write_tree
from lockstep.interop.trees import (
    Limit,
    array_of,
    collection_tree,
    fitting_net_tree,
    load_nets,
    precision_name,
    refuse_unsupported,
)
from lockstep.model import Potential
from lockstep.model.weights import refuse_unusable
from lockstep.version import __version__

log = logging.getLogger(__name__)


def save_dp(potential: Potential, path: str | Path, extra: Tree | None = None) -> None:
    """Write a potential for DeePMD-kit. Its weights are exported exactly."""
    misread = misread_elsewhere(potential.config.descriptor, len(potential.type_map))
    if misread:
        log.warning("%s: %s. Train with type_one_side: true to use the model there.", path, misread)
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
        potential = potential_of_tree(tree["model"])
        refuse_unusable(potential.state_dict(), str(path))
        return potential
    except CheckpointError as error:
        raise CheckpointError(error.reason, where=str(path), remedy=error.remedy) from error
    except KeyError as error:
        raise CheckpointError(f"the model description lacks {error}", where=str(path), remedy=_AGAIN) from error
    except CONTENT_ERRORS as error:
        reason = f"the model description cannot be understood: {_in_one_line(error)}"
        raise CheckpointError(reason, where=str(path), remedy=_AGAIN) from error


_AGAIN = "export the model again"


def _in_one_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return in_one_line(error)
    first = error.errors()[0]
    return str(UserError(first["msg"], where=".".join(map(str, first["loc"])), value=first["input"]))


def _model_tree(potential: Potential) -> Tree:
    ntypes = len(potential.type_map)
    bias = array_of(potential.network.bias).reshape(1, ntypes, 1)
    config, module = potential.config.descriptor, potential.network.descriptor
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
        "descriptor": descriptor_tree(
            Described(config, module, potential.cutoffs, potential.scales, potential.type_map)
        ),
        "fitting": _fitting_tree(potential),
    }


def _fitting_tree(potential: Potential) -> Tree:
    config, fitting = potential.config.fitting_net, potential.network.fitting
    ntypes = len(potential.type_map)
    mean, scale = array_of(fitting.parameter_mean), array_of(fitting.parameter_scale)
    n = config.numb_fparam
    nets = [fitting_net_tree(net, config.neuron, config.activation_function, config.resnet_dt) for net in fitting.nets]
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
        "precision": precision_name(fitting.dtype),
        "mixed_types": fitting.mixed_types,
        "nets": collection_tree(nets, 0 if fitting.mixed_types else 1, ntypes, "fitting_network"),
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


def potential_of_tree(model: Tree) -> Potential:
    """The potential that a description of a model is about."""
    refuse_unsupported([("model type", model.get("type"), ("standard",))])
    descriptor, fitting = model["descriptor"], model["fitting"]
    section = descriptor_section(descriptor)
    refuse_unsupported(_limits(model, fitting))
    potential = Potential(
        ModelConfig.model_validate(
            {
                "type_map": model["type_map"],
                "descriptor": section,
                "fitting_net": picked(fitting, EnergyFittingConfig),
            }
        )
    )
    network = potential.network
    mixed = network.descriptor.mixed_types
    refuse_unsupported([("fitting.mixed_types", fitting.get("mixed_types", False), (mixed,))])
    with torch.no_grad():
        potential.scales = load_descriptor(network.descriptor, descriptor)
        load_nets(network.fitting.nets, fitting["nets"]["networks"])
        # The bias lives at the model's output in newer files, in the fitting net in older ones.
        bias = model["@variables"]["out_bias"].reshape(-1) + fitting["@variables"]["bias_atom_e"].reshape(-1)
        network.bias.copy_(torch.from_numpy(bias))
        _load_parameter_scale(network.fitting, fitting["@variables"])
    return potential


def _limits(model: Tree, fitting: Tree) -> list[Limit]:
    return [
        ("fitting type", fitting.get("type"), ("ener",)),
        ("fitting.dim_case_embd", fitting.get("dim_case_embd", 0), (0,)),
        ("fitting.use_aparam_as_mask", fitting.get("use_aparam_as_mask", False), (False,)),
        ("fitting.exclude_types", fitting.get("exclude_types", []), ([],)),
        ("atom_exclude_types", model.get("atom_exclude_types", []), ([],)),
        ("pair_exclude_types", model.get("pair_exclude_types", []), ([],)),
    ]


def _load_parameter_scale(fitting: Any, variables: Tree) -> None:
    for buffer, key in ((fitting.parameter_mean, "avg"), (fitting.parameter_scale, "inv_std")):
        parts = [variables.get(f"{kind}_{key}") for kind in ("fparam", "aparam")]
        kept = [np.ravel(part) for part in parts if part is not None]
        if kept:
            buffer.copy_(torch.from_numpy(np.concatenate(kept)))
