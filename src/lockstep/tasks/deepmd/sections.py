"""The `model` and `loss` sections of an input as DeePMD-kit understands them: checked by its own argument check."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lockstep.errors import InputError
from lockstep.interop.kit.files import ONLY
from lockstep.interop.kit.package import load

_LONGEST = 200


@dataclass(frozen=True)
class Sections:
    """What is trained, with every default filled in.

    Attributes:
        models: the models by name; the only one of a run without `model_dict` is named `ONLY`.
        losses: the loss of each.
        links: which parts of them are one and the same, in DeePMD-kit's form; empty where none are.
    """

    models: dict[str, dict[str, Any]]
    losses: dict[str, dict[str, Any]]
    links: dict[str, Any]

    @property
    def multi_task(self) -> bool:
        return list(self.models) != [ONLY]

    def model_section(self, models: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Any]:
        """The `model` section again, of these models or of others in their place."""
        models = dict(models or self.models)
        return {"model_dict": models} if self.multi_task else models[ONLY]


def settle(model: Mapping[str, Any], loss: Mapping[str, Any], losses: Mapping[str, Any] | None = None) -> Sections:
    """Check the sections and fill in defaults; `losses` is `loss_dict`, for a model with `model_dict`."""
    load()
    section, given, by_name = (copy.deepcopy(dict(part or {})) for part in (model, loss, losses))
    if "model_dict" not in section:
        # A sum of models may leave the types to its parts.
        parts = [part["type_map"] for part in section.get("models", []) if "type_map" in part]
        section.setdefault("type_map", parts[0] if parts else [])
        checked = _checked({"model": section, "loss": given, **_training({})}, multi_task=False)
        return Sections({ONLY: _selected(checked["model"])}, {ONLY: checked["loss"]}, {})
    names = list(section["model_dict"])
    same_names("loss_dict", by_name, names)
    with _translated("model"):
        from deepmd.pt.utils.multi_task import preprocess_shared_params

        section, links = preprocess_shared_params(section)
    data: dict[str, Any] = {"data_dict": {name: {"training_data": {"systems": []}} for name in names}}
    checked = _checked({"model": section, "loss_dict": by_name, **_training(data)}, multi_task=True)
    return Sections(checked["model"]["model_dict"], checked["loss_dict"], links)


def _selected(model: dict[str, Any]) -> dict[str, Any]:
    """`fitting_net.sel_type` as the PyTorch classes have it: the other types are left out."""
    fitting = model.get("fitting_net")
    chosen = fitting.pop("sel_type", None) if isinstance(fitting, dict) else None
    if chosen is None:
        return model
    chosen = [chosen] if isinstance(chosen, int) else chosen
    others = {number for number in range(len(model["type_map"])) if number not in chosen}
    return {**model, "atom_exclude_types": sorted(others | set(model.get("atom_exclude_types") or []))}


def same_names(where: str, given: Mapping[str, Any], names: list[str]) -> None:
    """Stop unless a dictionary of the input has one entry for each model of `model_dict`."""
    missing = [name for name in names if name not in given]
    strange = [name for name in given if name not in names]
    if missing or strange:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(strange)} too many"] * bool(strange)
        raise InputError(
            " and ".join(parts),
            where=where,
            remedy=f"give one entry for each model of model.model_dict: {', '.join(names)}",
        )


def _training(data: dict[str, Any]) -> dict[str, Any]:
    """Sections that the argument check wants to see, though they are this program's own affair."""
    data = data or {"training_data": {"systems": []}}
    return {"learning_rate": {"type": "exp", "start_lr": 1e-3}, "training": {**data, "numb_steps": 1}}


def _checked(data: dict[str, Any], multi_task: bool) -> dict[str, Any]:
    from deepmd.utils.argcheck import normalize

    with _translated(""):
        checked: dict[str, Any] = normalize(data, multi_task=multi_task)
    return checked


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """DeePMD-kit's complaints about a section, as one of this program's."""
    from dargs.dargs import ArgumentError

    try:
        yield
    except ArgumentError as error:
        places = error.path.split("/") if isinstance(error.path, str) else error.path or []
        path = ".".join(part for part in places if part != "base")
        reason = str(error).split("\n")[0].rpartition("] ")[2].strip()
        raise InputError(f"DeePMD-kit refuses it: {reason}", where=path or where) from error
    except OSError as error:
        raise InputError(
            f"a file that it names cannot be read: {plain(error)}",
            where=where or "model",
            remedy="relative paths start from the folder in which the command is run",
        ) from error
    except (ValueError, AssertionError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
        # The argument check knows what is of any backend; only PyTorch's is used here.
        remedy = "where only DeePMD-kit's TensorFlow backend has it: dp --tf train" if where.startswith("model") else ""
        raise InputError(f"DeePMD-kit refuses it: {plain(error)}", where=where or "model", remedy=remedy) from error


def translated(where: str, action: Callable[[], Any]) -> Any:
    """The result of `action`, with DeePMD-kit's complaints as errors of the key `where`."""
    with _translated(where):
        return action()


def plain(error: Exception) -> str:
    """The beginning of an error, for one line."""
    text = f"the key {error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
    # What a module looks like inside helps nobody.
    words = re.sub(r": \[?\w+\( .*", "", " ".join(text.split())) or type(error).__name__
    return words if len(words) <= _LONGEST else words[:_LONGEST] + " ..."
