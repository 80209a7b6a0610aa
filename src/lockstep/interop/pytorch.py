"""Models of DeePMD-kit's PyTorch backend: checkpoints (`.pt`) and frozen models (`.pth`).

DeePMD-kit is not needed, and nothing in a file is executed: a checkpoint is loaded as weights only, a frozen model's
archive is read for its tensors and its description of the model.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.config import ModelConfig
from lockstep.config.input import parse_model
from lockstep.errors import CONTENT_ERRORS, CheckpointError, InputError, in_one_line
from lockstep.geometry import RowScale
from lockstep.interop.described import row_scale
from lockstep.interop.torch_archive import is_archive, named_tensors, read_archive
from lockstep.model import Potential
from lockstep.network.descriptors import Descriptor
from lockstep.network.descriptors.hybrid import Hybrid
from lockstep.network.descriptors.se_atten import SeAtten
from lockstep.network.descriptors.se_e2_a import NetsByType, SeE2A
from lockstep.network.mlp import MLP, Layer

Tensors = Mapping[str, Tensor]
SUFFIXES = (".pt", ".pth")
_BRANCH = "Default"


def is_pytorch_file(path: Path) -> bool:
    """Whether a file has the name and the form of those that DeePMD-kit's PyTorch backend writes."""
    return path.suffix in SUFFIXES and path.is_file() and zipfile.is_zipfile(path)


def load_pytorch(path: Path) -> Potential:
    """The potential in a checkpoint or frozen model of DeePMD-kit's PyTorch backend."""
    try:
        parameters, tensors = _frozen(path) if is_archive(path) else _checkpoint(path)
        return _potential(parse_model(_model_section(parameters)), tensors)
    except CheckpointError as error:
        raise CheckpointError(error.reason, where=str(path), remedy=error.remedy) from error
    except InputError as error:
        raise CheckpointError(
            f"is of a model that is not native here ({error.where}: {error.reason})",
            where=str(path),
            remedy="train it on with DeePMD-kit's own classes, or export it to .dp with dp convert-backend",
        ) from error
    except KeyError as error:
        raise CheckpointError(f"lacks {error}", where=str(path)) from error
    except CONTENT_ERRORS as error:
        raise CheckpointError(f"its contents cannot be understood: {in_one_line(error)}", where=str(path)) from error


def _checkpoint(path: Path) -> tuple[dict[str, Any], Tensors]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, OSError, *CONTENT_ERRORS) as error:
        raise CheckpointError(f"cannot be loaded as weights only: {in_one_line(error)}") from error
    state = loaded.get("model", loaded) if isinstance(loaded, dict) else {}
    extra = state.get("_extra_state")
    if not isinstance(extra, dict) or "model_params" not in extra:
        raise CheckpointError("is not a checkpoint of DeePMD-kit: it does not say what model it is of")
    branches = {name.split(".")[1] for name in state if name.startswith("model.")}
    if branches != {_BRANCH}:
        reason = f"holds several models ({', '.join(sorted(branches))}), trained together"
        raise CheckpointError(reason, remedy="freeze the one you want: dp --pt freeze --head NAME")
    prefix = f"model.{_BRANCH}.atomic_model."
    return extra["model_params"], {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _frozen(path: Path) -> tuple[dict[str, Any], Tensors]:
    root = read_archive(path)
    script = root.attributes.get("model_def_script")
    if not isinstance(script, str) or not script:
        raise CheckpointError("is not a frozen model of DeePMD-kit: it does not say what model it is of")
    prefix = "atomic_model."
    tensors = {name.removeprefix(prefix): value for name, value in named_tensors(root) if name.startswith(prefix)}
    return json.loads(script), tensors


def _model_section(parameters: dict[str, Any]) -> dict[str, Any]:
    """The `model` section without what DeePMD-kit notes there about the data."""
    section = {key: value for key, value in parameters.items() if key != "info"}
    return {**section, "descriptor": _descriptor_section(section["descriptor"])}


def _descriptor_section(section: dict[str, Any]) -> dict[str, Any]:
    if "list" in section:
        return {**section, "list": [_descriptor_section(member) for member in section["list"]]}
    # Whatever the input says, the PyTorch backend has one net for each neighbour type here.
    return {**section, "type_one_side": True} if section.get("type") in ("se_e2_r", "se_r") else section


def _potential(config: ModelConfig, tensors: Tensors) -> Potential:
    potential = Potential(config)
    network = potential.network
    with torch.no_grad():
        potential.scales = _load_descriptor(network.descriptor, tensors, "descriptor")
        _load_nets(network.fitting.nets, tensors, "fitting_net.filter_layers.networks")
        bias = tensors["out_bias"].reshape(-1).to(torch.float64)
        network.bias.copy_(bias + tensors["fitting_net.bias_atom_e"].reshape(-1))
        for buffer, key in ((network.fitting.parameter_mean, "avg"), (network.fitting.parameter_scale, "inv_std")):
            names = [f"fitting_net.{kind}_{key}" for kind in ("fparam", "aparam")]
            kept = [tensors[name].reshape(-1) for name in names if name in tensors]
            if kept:
                _copy(buffer, torch.cat(kept), names[0])
    return potential


def _load_descriptor(module: Descriptor, tensors: Tensors, at: str) -> tuple[RowScale, ...]:
    if isinstance(module, Hybrid):
        members = enumerate(module.members)
        return tuple(
            scale
            for number, member in members
            if isinstance(member, Descriptor)
            for scale in _load_descriptor(member, tensors, f"{at}.descrpt_list.{number}")
        )
    if isinstance(module, SeAtten):
        return _load_atten(module, tensors, at)
    assert isinstance(module, NetsByType)
    inner = f"{at}.sea" if isinstance(module, SeE2A) else at
    _load_nets(module.nets, tensors, f"{inner}.filter_layers.networks")
    return (_scale(tensors, inner),)


def _load_atten(module: SeAtten, tensors: Tensors, at: str) -> tuple[RowScale, ...]:
    _load_net(module.net, tensors, f"{at}.se_atten.filter_layers.networks.0")
    if module.strip_net is not None:
        _load_net(module.strip_net, tensors, f"{at}.se_atten.filter_layers_strip.networks.0")
    layer = f"{at}.type_embedding.embedding.embedding_net.layers.0"
    _copy(module.type_embedding.weight, tensors[f"{layer}.matrix"], f"{layer}.matrix")
    if module.type_embedding.bias is not None:
        _copy(module.type_embedding.bias, tensors[f"{layer}.bias"], f"{layer}.bias")
    return (_scale(tensors, f"{at}.se_atten"),)


def _scale(tensors: Tensors, at: str) -> RowScale:
    return row_scale({"davg": tensors[f"{at}.mean"].numpy(), "dstd": tensors[f"{at}.stddev"].numpy()})


def _load_nets(nets: nn.ModuleList, tensors: Tensors, at: str) -> None:
    for number, net in enumerate(nets):
        assert isinstance(net, MLP)
        _load_net(net, tensors, f"{at}.{number}")


def _load_net(net: MLP, tensors: Tensors, at: str) -> None:
    for number, layer in enumerate(net.layers):
        assert isinstance(layer, Layer)
        for parameter, name in ((layer.weight, "matrix"), (layer.bias, "bias"), (layer.idt, "idt")):
            if parameter is not None:
                full = f"{at}.layers.{number}.{name}"
                _copy(parameter, tensors[full], full)


def _copy(target: Tensor, value: Tensor, name: str) -> None:
    if target.shape != value.shape:
        raise CheckpointError(f"the weights {name} have shape {tuple(value.shape)}, expected {tuple(target.shape)}")
    target.copy_(value)
