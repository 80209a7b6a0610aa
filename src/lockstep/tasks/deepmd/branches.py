"""The models of a run and their losses, as objects of DeePMD-kit's PyTorch backend."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from lockstep.interop.kit.files import ONLY, PREFIX
from lockstep.interop.kit.package import load
from lockstep.tasks.deepmd.sections import Sections, translated


@dataclass(frozen=True)
class Branch:
    """One model with its loss.

    Attributes:
        model, loss: DeePMD-kit's objects. The loss is called with inputs, model, labels, atoms and learning rate.
        params: the `model` section it was built from.
        labels: what the loss wants from the data, as DeePMD-kit's requirements.
        inputs: what the model wants beside coordinates, types and cell.
    """

    name: str
    model: nn.Module
    loss: nn.Module
    params: dict[str, Any]
    labels: tuple[Any, ...]
    inputs: tuple[Any, ...]


def build_branches(sections: Sections, start_lr: float) -> dict[str, Branch]:
    """Every model with its loss, weights as the seeds say; parts to be shared are not yet shared."""
    load()
    from deepmd.pt.train import training

    case_index: Mapping[str, int] = {}
    if sections.multi_task:
        where = "model.model_dict"
        _, case_index = translated(where, lambda: training.get_case_embd_config(sections.model_section()))
    branches = {}
    for name, params in sections.models.items():
        where = f"model.model_dict.{name}" if sections.multi_task else "model"
        model = translated(where, partial(training.get_single_model, params))
        if name in case_index:
            model.set_case_embd(case_index[name])
        branches[name] = _with_loss(name, model, params, sections.losses[name], start_lr)
    return branches


def _with_loss(name: str, model: nn.Module, params: dict, loss_params: Mapping[str, Any], start_lr: float) -> Branch:
    from deepmd.pt.train import training

    where = "loss" if name == ONLY else f"loss_dict.{name}"
    params, given = copy.deepcopy(params), copy.deepcopy(dict(loss_params))

    def make() -> tuple[nn.Module, list[Any]]:
        training.prepare_model_for_loss(model, given)
        loss = training.get_loss(given, start_lr, len(params["type_map"]), model)
        labels = loss.label_requirement
        training.prepare_model_for_data_requirements(model, labels, params)
        return loss, labels

    loss, labels = translated(where, make)
    return Branch(name, model, loss, params, tuple(labels), tuple(training.get_additional_data_requirement(model)))


class Models(nn.Module):
    """All weights and constants of a run. Parts that branches share are named once, by the first branch."""

    def __init__(self, branches: Mapping[str, Branch]) -> None:
        super().__init__()
        # The name is that of `PREFIX`, under which files find the models again.
        self.branches = nn.ModuleDict({name: branch.model for name, branch in branches.items()})

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Tensors only, each once: some of DeePMD-kit's modules have further state that is none."""
        return self._named(super().state_dict(*args, **kwargs))[0]

    def aliases(self) -> dict[str, str]:
        """Further names of tensors that `state_dict` names once, both as `<model>.<name>`."""
        start = len(f"{PREFIX}.")
        found = self._named(super().state_dict())[1]
        return {name[start:]: other[start:] for name, other in found.items()}

    def _named(self, state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
        found: dict[str, Tensor] = {}
        aliases: dict[str, str] = {}
        first: dict[tuple[int, tuple[int, ...]], str] = {}
        for name, tensor in state.items():
            if not isinstance(tensor, Tensor):
                continue
            place = (tensor.data_ptr(), tuple(tensor.shape))
            # Empty tensors have no address of their own.
            if tensor.numel() and place in first:
                aliases[name] = first[place]
                continue
            first[place] = name
            found[name] = tensor
        return found, aliases

    def share(self, sections: Sections, probabilities: Mapping[str, float], *, merge: bool) -> None:
        """Make those parts one that the input says are; `merge` averages their statistics first."""
        if not sections.links:
            return
        wrapper = self._wrapper(sections)
        protect = {float(params.get("data_stat_protect", 1e-2)) for params in sections.models.values()}
        options = {"model_key_prob_map": dict(probabilities), "data_stat_protect": max(protect)}
        if merge:
            wrapper.share_params(sections.links, resume=False, **options)
        wrapper.share_params(sections.links, resume=True, **options)

    def _wrapper(self, sections: Sections) -> Any:
        from deepmd.pt.train.wrapper import ModelWrapper

        models = dict(self.branches.items())
        return ModelWrapper(models if sections.multi_task else models[ONLY], model_params=sections.model_section())


def note_definition(branch: Branch, params: Mapping[str, Any]) -> None:
    """Let a model know the section it comes from, which it carries into files of its own."""
    branch.model.model_def_script = json.dumps(params)  # type: ignore[assignment]
