"""What a checkpoint holds of a run, and how a run is put back into that state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep import __version__
from lockstep.checkpoint.store import Checkpoint, compare_configs
from lockstep.config import Input, ModelConfig
from lockstep.config.input import parse_input
from lockstep.errors import CheckpointError
from lockstep.model import Potential
from lockstep.optim.optimizer import Optimizer
from lockstep.tasks.energy.loss import Metrics

_NOT_OF_THE_MODEL = ("seed", "trainable", "data_stat_nbatch", "data_stat_protect", "rcond", "spectral")


def run_tensors(potential: Potential, optimizer: Optimizer, interval: Metrics | None) -> dict[str, Tensor]:
    """Weights, constants and optimizer state, by dotted name."""
    tensors = {f"model.{name}": tensor for name, tensor in potential.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.tensors().items()}
    if interval is not None:
        tensors["interval.values"] = interval.values
    return tensors


def run_info(
    config: Input, stream: Mapping[str, Any], spectral: Mapping[str, Any], pace: Mapping[str, int]
) -> dict[str, Any]:
    """All else that a run needs to go on, as JSON."""
    versions = {"lockstep": __version__, "torch": torch.__version__}
    return {
        "input": config.dump(),
        "stream": dict(stream),
        "spectral": dict(spectral),
        "pace": dict(pace),
        "versions": versions,
    }


def restore_optimizer(optimizer: Optimizer, checkpoint: Checkpoint) -> None:
    optimizer.load(checkpoint.group("optimizer"))


def restore_interval(checkpoint: Checkpoint, names: tuple[str, ...]) -> Metrics | None:
    values = checkpoint.tensors.get("interval.values")
    return None if values is None else Metrics(names, values.clone())


def potential_of(checkpoint: Checkpoint) -> Potential:
    """The potential in a checkpoint, by the configuration saved with it."""
    potential = Potential(model_config_of(checkpoint))
    load_weights(potential, checkpoint.group("model"), str(checkpoint.path))
    return potential


def model_config_of(checkpoint: Checkpoint) -> ModelConfig:
    try:
        return parse_input(checkpoint.info["input"], source=str(checkpoint.path)).model
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks {error}", where=str(checkpoint.path)) from error


def load_weights(potential: Potential, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights and constants into a potential of the same shape."""
    own = potential.state_dict()
    for name, tensor in own.items():
        if name not in tensors:
            raise CheckpointError(f"the weights {name} are missing", where=where)
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
            raise CheckpointError(f"the weights {name} have shape {shapes}", where=where)
        tensor.copy_(tensors[name])


def refuse_other_model(saved: ModelConfig, given: ModelConfig, where: str) -> None:
    """Stop when weights are of another model than the input file describes."""
    given_dump, saved_dump = (_spelt_out(config.model_dump(mode="json")) for config in (given, saved))
    if isinstance(given.descriptor.sel, str):
        given_dump["descriptor"]["sel"] = saved_dump["descriptor"]["sel"]
    differences = compare_configs(saved_dump, given_dump, "model", ignore=_NOT_OF_THE_MODEL)
    if differences:
        raise CheckpointError(
            "is of another model than the input file describes:\n    " + "\n    ".join(differences),
            where=where,
            remedy="use the input file of that run (out.json beside it), or train anew",
        )


def _spelt_out(model: dict[str, Any]) -> dict[str, Any]:
    """With `default` replaced by what it stands for: model files of other programs always say it."""
    for part in ("descriptor", "fitting_net"):
        if model[part]["precision"] == "default":
            model[part]["precision"] = "float64"
    return model
