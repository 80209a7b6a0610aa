"""Weights that a run of DeePMD-kit's models begins with: taken over as they are, or fine-tuned to other data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.checkpoint.find import load_checkpoint
from lockstep.errors import CheckpointError
from lockstep.interop.exchange import is_exchange_file
from lockstep.interop.kit.files import ONLY, all_names, of_exchange
from lockstep.interop.loading import is_foreign_checkpoint
from lockstep.tasks.deepmd.branches import Branch
from lockstep.tasks.deepmd.sections import Sections, translated

log = logging.getLogger(__name__)

_SHOWN = 4


@dataclass(frozen=True)
class Pretrained:
    """Models of a file: their `model` section, and the weights of each by name."""

    source: str
    section: dict[str, Any]
    states: dict[str, dict[str, Tensor]]


def read_pretrained(source: str) -> Pretrained:
    """The models in a checkpoint of this program's or of DeePMD-kit's, or in a `.dp` or `.pth` model."""
    path = Path(source)
    if path.suffix == ".pt":
        return _of_pt(path)
    if path.suffix == ".pth":
        return _of_frozen(path)
    if not path.exists() and path.with_name(path.name + ".dp").is_file():
        path = path.with_name(path.name + ".dp")
    if path.is_file() and is_exchange_file(path):
        section, state = of_exchange(path)
        return Pretrained(source, section, {ONLY: state})
    checkpoint = load_checkpoint(path)
    if not is_foreign_checkpoint(checkpoint):
        raise CheckpointError(
            "is of a native model, and the input's is one of DeePMD-kit's",
            where=source,
            remedy="dp freeze it, and begin with the .dp model",
        )
    return Pretrained(source, dict(checkpoint.info["input"]["model"]), _by_model(all_names(checkpoint)))


def _of_pt(path: Path) -> Pretrained:
    try:
        # Nothing in the file is executed: it holds tensors, numbers and text.
        content = torch.load(path, map_location="cpu", weights_only=True)
        state = content.get("model", content)
        section = dict(state["_extra_state"]["model_params"])
    except (OSError, RuntimeError, KeyError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"is not a checkpoint of DeePMD-kit's PyTorch backend ({error})", where=str(path)
        ) from error
    tensors = {name[len("model.") :]: each for name, each in state.items() if isinstance(each, Tensor)}
    return Pretrained(str(path), section, _by_model(tensors))


def _of_frozen(path: Path) -> Pretrained:
    try:
        frozen = torch.jit.load(str(path), map_location="cpu")
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"is not a TorchScript model ({str(error).splitlines()[0]})", where=str(path)) from error
    return Pretrained(str(path), json.loads(frozen.get_model_def_script()), {ONLY: dict(frozen.state_dict())})


def _by_model(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        model, _, rest = name.partition(".")
        found.setdefault(model, {})[rest] = tensor
    return found


def take_over(branches: Mapping[str, Branch], pretrained: Pretrained) -> None:
    """Give models the weights and constants of those of the same names."""
    log.info("Initial weights are taken from %s", pretrained.source)
    for name, branch in branches.items():
        if name not in pretrained.states:
            raise CheckpointError(
                f"has no model {name!r}, but {', '.join(pretrained.states)}",
                where=pretrained.source,
                remedy="name the models of model.model_dict as that file does, or use --finetune",
            )
        _load(branch.model, pretrained.states[name], pretrained.source)


def _load(model: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    own = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    wrong = [f"{name} is missing" for name in own if name not in state]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)}, the model's {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        more = f"\n    and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise CheckpointError(
            "is of another model than the input file describes:\n    " + "\n    ".join(wrong[:_SHOWN]) + more,
            where=where,
            remedy="use the model section of that run (out.json beside it), or --finetune",
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def fine_tune(
    branches: Mapping[str, Branch],
    sections: Sections,
    pretrained: Pretrained,
    head: str | None,
    samplers: Mapping[str, Any],
) -> None:
    """Give models the weights of pretrained ones, whatever their types and heads, and fit their bias to the data."""
    from deepmd.pt.train import training
    from deepmd.utils.finetune import get_finetune_rules_from_model_params

    log.info("Fine-tuning of %s", pretrained.source)

    def prepared() -> tuple[Any, Any]:
        _, rules = get_finetune_rules_from_model_params(
            pretrained.section, sections.model_section(), model_branch=head or "", change_model_params=False
        )
        models = training.get_model_for_wrapper(pretrained.section)
        return rules, models if isinstance(models, dict) else {ONLY: models}

    rules, models = translated("--finetune", prepared)
    for name, model in models.items():
        _load(model, pretrained.states[name], pretrained.source)
    for name, branch in branches.items():
        rule = rules[name]
        source = models[rule.get_model_branch()]
        if rule.get_finetune_tmap() != source.get_type_map():
            fresh = branch.model if rule.get_has_new_type() else None
            source.change_type_map(rule.get_finetune_tmap(), model_with_new_type_stat=fresh)
        _load(branch.model, _chosen(branch.model, source, rule.get_random_fitting()), pretrained.source)
        mode = "set-by-statistic" if rule.get_random_fitting() else "change-by-statistic"
        training.model_change_out_bias(branch.model, samplers[name], _bias_adjust_mode=mode)


def _chosen(model: nn.Module, source: nn.Module, random_fitting: bool) -> dict[str, Tensor]:
    """The pretrained weights, but for a fitting net that starts anew."""
    own, state = model.state_dict(), source.state_dict()
    kept = {name for name in own if random_fitting and ".descriptor." not in name}
    return {name: own[name] if name in kept else state.get(name, own[name]) for name in own}
