"""Loading a potential from whatever file holds one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.checkpoint.compare import compare_configs
from lockstep.checkpoint.find import load_checkpoint
from lockstep.checkpoint.format import Checkpoint
from lockstep.config import ForeignInput, ModelConfig, parse_any_input
from lockstep.config.foreign import NOT_YET
from lockstep.config.input import parse_input
from lockstep.errors import CheckpointError, ForeignModelError, UserError, taken_apart
from lockstep.interop.deepmd import load_dp
from lockstep.interop.exchange import is_exchange_file
from lockstep.interop.kit import package
from lockstep.interop.kit.package import PIP
from lockstep.interop.pytorch import is_pytorch_file, load_pytorch
from lockstep.model.potential import Potential
from lockstep.model.weights import AVERAGE, load_weights, refuse_unusable

log = logging.getLogger(__name__)

_NOT_OF_THE_MODEL = (
    *("seed", "trainable", "data_stat_nbatch", "data_stat_protect", "rcond", "spectral"),
    # Of attention layers, which native models have none of.
    *("attn", "attn_dotr", "trainable_ln", "ln_eps", "scaling_factor", "normalize", "temperature"),
)
_SUFFIX = ".dp"
_FOREIGN = (".pb", ".pt2", ".pte", ".savedmodel", ".savedmodeltf", ".hlo")


def load_potential(path: str | Path, average: bool = False) -> Potential:
    """The potential in a `.dp` model, a checkpoint, or a file of DeePMD-kit's PyTorch backend, told apart by content.

    A `.dp` model may be named without its suffix; a checkpoint by its prefix, or by the folder of its run. `average`
    takes the running average of the weights, which only checkpoints may have.
    """
    try:
        return _load(Path(path), average)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise CheckpointError(reason, where=str(path), remedy="check the path, and that you may read it") from error


def _load(path: Path, average: bool) -> Potential:
    if not path.exists() and (model := path.with_name(path.name + _SUFFIX)).is_file():
        path = model
    if average and (path.suffix == _SUFFIX or is_exchange_file(path) or is_pytorch_file(path)):
        raise UserError("only checkpoints of this program have averages of the weights", where="--ema", value=str(path))
    if is_exchange_file(path) or path.suffix == _SUFFIX:
        potential = _load_exchange(path)
        log.info("Loaded %s", path)
        return potential
    if is_pytorch_file(path):
        potential = _load_pytorch(path)
        log.info("Loaded %s, a file of DeePMD-kit's PyTorch backend", path)
        return potential
    _refuse_foreign(path)
    checkpoint = load_checkpoint(path)
    if is_foreign_checkpoint(checkpoint):
        raise _foreign(path)
    return potential_of(checkpoint, average)


def _load_exchange(path: Path) -> Potential:
    try:
        return load_dp(path)
    except CheckpointError as error:
        if NOT_YET in error.reason:
            raise _foreign(path) from error
        raise


def _load_pytorch(path: Path) -> Potential:
    try:
        return load_pytorch(path)
    except CheckpointError as error:
        # Whatever is wrong with it, DeePMD-kit knows its own files best.
        if package.version() is not None:
            raise _foreign(path) from error
        raise


def _foreign(path: Path) -> ForeignModelError:
    return ForeignModelError(
        "is a model that DeePMD-kit's classes evaluate, and DeePMD-kit is not installed", where=str(path), remedy=PIP
    )


def is_foreign_checkpoint(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint of this program is of one of DeePMD-kit's models."""
    given = checkpoint.info.get("input") or {}
    try:
        with taken_apart(checkpoint.path):
            return isinstance(parse_any_input(dict(given)), ForeignInput)
    except UserError:
        return False


def _refuse_foreign(path: Path) -> None:
    """Tell what a file is not, before it is taken for a damaged checkpoint."""
    if path.is_file() and path.suffix not in _FOREIGN and not _may_be_checkpoint(path):
        raise CheckpointError(
            "is neither a model (.dp) nor a checkpoint (.safetensors)",
            where=str(path),
            remedy="name one of these, a prefix such as model.ckpt, or the folder of a run",
        )
    if path.exists() and path.suffix in (*_FOREIGN, ".pt", ".pth") and package.version() is not None:
        raise _foreign(path)
    if path.exists() and path.suffix in _FOREIGN:
        raise CheckpointError(
            "is a model for another program, not in DeePMD-kit's exchange format",
            where=str(path),
            remedy=f"with DeePMD-kit: dp convert-backend {path.name} {path.stem}{_SUFFIX}",
        )


def _may_be_checkpoint(path: Path) -> bool:
    """Whether the file begins like a checkpoint, or like a pickle, which is refused with a reason of its own."""
    with path.open("rb") as file:
        head = file.read(9)
    return path.suffix == ".safetensors" or head[8:] == b"{" or head.startswith((b"PK\x03\x04", b"\x80"))


def averages_of(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The running averages of the weights, by their names; stops where there are none."""
    averages = checkpoint.group(AVERAGE)
    if not averages:
        raise UserError(
            f"{checkpoint.path} has no running average of its weights",
            where="--ema",
            remedy="train with training.enable_ema",
        )
    return averages


def potential_of(checkpoint: Checkpoint, average: bool = False) -> Potential:
    """The potential in a checkpoint, by the configuration saved with it."""
    averages = averages_of(checkpoint) if average else {}
    with taken_apart(checkpoint.path):
        potential = Potential(model_config_of(checkpoint))
        load_weights(potential, checkpoint.group("model") | averages, str(checkpoint.path))
        refuse_unusable(potential.state_dict(), str(checkpoint.path))
        return potential


def model_config_of(checkpoint: Checkpoint) -> ModelConfig:
    try:
        return parse_input(checkpoint.info["input"], source=str(checkpoint.path)).model
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks {error}", where=str(checkpoint.path)) from error


def refuse_other_model(saved: ModelConfig, given: ModelConfig, where: str) -> None:
    """Stop when weights are of another model than the input file describes."""
    given_dump, saved_dump = (_spelt_out(config.model_dump(mode="json")) for config in (_settled(given, saved), saved))
    differences = compare_configs(saved_dump, given_dump, "model", ignore=_NOT_OF_THE_MODEL)
    if differences:
        raise CheckpointError(
            "is of another model than the input file describes:\n    " + "\n    ".join(differences),
            where=where,
            remedy="use the input file of that run (out.json beside it), or train anew",
        )


def _settled(given: ModelConfig, saved: ModelConfig) -> ModelConfig:
    """With the saved numbers in place of `sel: auto`."""
    parts, others = given.descriptor.parts(), saved.descriptor.parts()
    if len(parts) != len(others):
        return given
    sel = [other.sel if isinstance(part.sel, str) else part.sel for part, other in zip(parts, others, strict=True)]
    return given.model_copy(update={"descriptor": given.descriptor.with_sel(sel)})


def _spelt_out(model: dict[str, Any]) -> dict[str, Any]:
    """With `default` replaced by what it stands for: model files of other programs always say it."""
    spelt = dict(model)
    if "list" in spelt:
        spelt["list"] = {str(number): _spelt_out(member) for number, member in enumerate(spelt["list"])}
    for part in ("descriptor", "fitting_net"):
        if part in spelt:
            spelt[part] = _spelt_out(spelt[part])
    if spelt.get("precision") == "default":
        spelt["precision"] = "float64"
    return spelt
