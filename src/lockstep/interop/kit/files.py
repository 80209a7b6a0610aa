"""Files of models that are not native: told apart, and made into DeePMD-kit's own files."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from lockstep.checkpoint.find import load_checkpoint
from lockstep.checkpoint.format import Checkpoint
from lockstep.errors import ForeignModelError, UserError
from lockstep.interop.deepmd import save_dp
from lockstep.interop.exchange import is_exchange_file, read_tree
from lockstep.interop.kit import package
from lockstep.interop.loading import averages_of, load_potential

log = logging.getLogger(__name__)

ONLY = "Default"
"""What DeePMD-kit calls the one model of a run that has no others."""
PREFIX = "branches"
ALIASES = "aliases"
"""Under this key a checkpoint says which names are further ones of a tensor that it holds once."""
THEIRS = (".pt", ".pth", ".pt2", ".pb", ".savedmodel", ".savedmodeltf", ".jlo", ".hlo", ".pte")


def model_of(
    checkpoint: Checkpoint, head: str | None = None, average: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The `model` section of a checkpoint and its weights, by DeePMD-kit's names; `head` chooses one of several."""
    section = copy.deepcopy(dict(checkpoint.info["input"]["model"]))
    tensors = all_names(checkpoint, average)
    if "model_dict" not in section:
        return section, {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    branches = section["model_dict"]
    if head not in branches:
        raise UserError(
            f"the checkpoint holds several models: {', '.join(branches)}",
            where="--head",
            value=head,
            remedy=f"choose one: --head {next(iter(branches))}",
        )
    start = f"{head}."
    return branches[head], {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def all_names(checkpoint: Checkpoint, average: bool = False) -> dict[str, Tensor]:
    """The weights of all models as `<model>.<name>`, shared ones under each of their names."""
    found = dict(checkpoint.group(f"model.{PREFIX}"))
    if average:
        start = len(f"{PREFIX}.")
        found |= {name[start:]: tensor for name, tensor in averages_of(checkpoint).items()}
    for name, other in checkpoint.info.get(ALIASES, {}).items():
        found[name] = found[other]
    return found


def write_pt(path: Path, section: Mapping[str, Any], tensors: Mapping[str, Tensor], step: int = 0) -> None:
    """A checkpoint as DeePMD-kit's PyTorch backend writes them, of one model."""
    state: dict[str, Any] = {f"model.{ONLY}.{name}": tensor for name, tensor in tensors.items()}
    state["_extra_state"] = {"model_params": dict(section), "train_infos": {"lr": 0.0, "step": step}}
    torch.save({"model": state, "optimizer": {}}, path)


@contextmanager
def as_pt(path: str | Path, head: str | None = None, average: bool = False) -> Iterator[Path]:
    """A model file or checkpoint as one that DeePMD-kit's PyTorch backend opens; gone afterwards."""
    path = Path(path)
    if path.suffix in THEIRS:
        yield path
        return
    package.require(f"the model in {path.name}", str(path))
    package.load()
    with TemporaryDirectory(prefix="lockstep-") as folder:
        yield _written(path, Path(folder), head, average)


def _written(path: Path, folder: Path, head: str | None, average: bool) -> Path:
    """A model in a file of DeePMD-kit's PyTorch backend: a native one as TorchScript, any other as a checkpoint."""
    target = folder / f"{path.stem or 'model'}.pt"
    try:
        potential = load_potential(path)
    except ForeignModelError:
        if not path.exists() and path.with_name(path.name + ".dp").is_file():
            path = path.with_name(path.name + ".dp")
        if path.is_file() and is_exchange_file(path):
            write_pt(target, *of_exchange(path))
        else:
            checkpoint = load_checkpoint(path)
            write_pt(target, *model_of(checkpoint, head, average), checkpoint.step)
        return target
    exchange = target.with_suffix(".dp")
    save_dp(potential, exchange)
    convert(exchange, target.with_suffix(".pth"))
    return target.with_suffix(".pth")


def of_exchange(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The `model` section and the weights of a `.dp` model."""
    from deepmd.pt.model.model import BaseModel

    tree = read_tree(path)
    model = BaseModel.deserialize(tree["model"])
    script = tree["model_def_script"]
    return (json.loads(script) if isinstance(script, str) else script), dict(model.state_dict())


def freeze(source: str | Path, target: Path, head: str | None = None, average: bool = False) -> Path:
    """Write a checkpoint's model as `.dp`, or as `.pth` by DeePMD-kit's own freeze; returns the file written."""
    package.load()
    with as_pt(source, head, average) as checkpoint:
        if target.suffix == ".dp":
            from deepmd.dpmodel.utils.serialization import save_dp_model
            from deepmd.pt.utils.serialization import serialize_from_file

            save_dp_model(str(target), serialize_from_file(str(checkpoint)))
            return target
        from deepmd.pt.entrypoints.main import freeze as freeze_there

        freeze_there(str(checkpoint), str(target))
    written = [path for path in (target, target.with_suffix(".pt2"), target.with_suffix(".pth")) if path.exists()]
    return written[0]


def convert(source: Path, target: Path) -> None:
    """A native `.dp` model as DeePMD-kit's TorchScript."""
    package.load()
    from deepmd.dpmodel.utils.serialization import load_dp_model
    from deepmd.pt.utils.serialization import deserialize_to_file

    deserialize_to_file(str(target), load_dp_model(str(source)))


def calculator(model: str | Path, *args: Any, head: str | None = None, **kwargs: Any) -> Any:
    """DeePMD-kit's ASE calculator of a model that only its classes evaluate."""
    package.load()
    from deepmd.calculator import DP

    with as_pt(model, head) as path:
        log.info("%s: evaluated by DeePMD-kit %s", model, package.version())
        return DP(str(path), *args, **kwargs)
