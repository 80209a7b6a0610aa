"""Inputs whose model, loss or optimizer is not this program's own, and the one place that tells them from native ones.

What is native is what `Input` accepts. An input is DeePMD-kit's affair when the only objections to its model and loss
are that something in them is "not supported yet": then these sections are kept as they are, for DeePMD-kit's own check.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lockstep.config import unsupported
from lockstep.config.input import AnyInput, Input, RawInput, common_findings, examine, parse_input
from lockstep.config.optimizer import AdamConfig, OptimizerConfig
from lockstep.config.parse import read_file
from lockstep.config.problem import Problem, combine
from lockstep.config.section import (
    Aliases,
    Count,
    Finding,
    Flag,
    FractionBelowOne,
    NonNegative,
    Number,
    Positive,
    Section,
    Tags,
    Text,
)
from lockstep.config.training import TrainingConfig, TrainingDataConfig, ValidationDataConfig
from lockstep.errors import InputError

NOT_YET = "not supported yet"
_THEIRS = ("model", "loss", "optimizer")


class AdaMuonConfig(Section):
    """DeePMD-kit's AdaMuon."""

    type: Literal["AdaMuon"] = "AdaMuon"
    """The optimizer: AdaMuon, of DeePMD-kit."""
    momentum: Annotated[FractionBelowOne, Aliases("muon_momentum")] = 0.95
    """Decay of the momentum of matrices."""
    adam_beta1: FractionBelowOne = 0.9
    """Decay of the running mean of the gradients of all else."""
    adam_beta2: FractionBelowOne = 0.95
    """Decay of the running mean of their squares."""
    weight_decay: NonNegative = 0.001
    """Weight decay of matrices."""
    lr_adjust: Number = 10.0
    """Above zero, all else learns at the learning rate divided by this; otherwise updates are scaled alike."""
    lr_adjust_coeff: NonNegative = 0.2
    """The size of a scaled update."""


class HybridMuonConfig(AdaMuonConfig):
    """DeePMD-kit's HybridMuon."""

    type: Literal["HybridMuon"] = "HybridMuon"  # type: ignore[assignment]
    """The optimizer: HybridMuon, of DeePMD-kit."""
    lr_adjust: Number = 0.0
    """Above zero, all else learns at the learning rate divided by this; otherwise updates are scaled alike."""
    lr_adjust_coeff: NonNegative = 0.18
    """The size of a scaled update."""
    muon_mode: Literal["slice", "2d", "flat"] = "slice"
    """How weights of more than two axes are taken apart."""
    enable_gram: Flag = True
    """Orthogonalize by way of the Gram matrix."""
    flash_muon: Flag = True
    """Use the fused kernel on GPUs."""
    magma_muon: Flag = True
    """Damp updates that do not agree with the momentum."""


class KalmanConfig(Section):
    """DeePMD-kit's layer-wise Kalman filter."""

    type: Literal["LKF"] = "LKF"
    """The optimizer: a Kalman filter on energies and on the forces of a few atoms, one after the other."""
    kf_blocksize: Count = 5120
    """The largest side of a block of the covariance matrix; memory grows with it, time too."""
    kf_start_pref_e: Positive = 1.0
    """Weight of the energies at the start of training."""
    kf_limit_pref_e: Positive = 1.0
    """Weight of the energies at the end of training."""
    kf_start_pref_f: Positive = 1.0
    """Weight of the forces at the start of training."""
    kf_limit_pref_f: Positive = 1.0
    """Weight of the forces at the end of training."""


ForeignOptimizer = AdaMuonConfig | HybridMuonConfig | KalmanConfig


_SUPPORTED = ("data_dict", "model_prob", "num_epoch_dict")


class BranchConfig(Section):
    """The data of one model of `model_dict`."""

    training_data: TrainingDataConfig
    """The data to train on."""
    validation_data: ValidationDataConfig | None = None
    """The data to validate on; null for none."""
    stat_file: Text | None = None
    """Where statistics of these data are kept for the next run."""
    stat_file_mode: Literal["update", "read"] = "update"
    """`update` adds missing statistics to `stat_file`; `read` needs them complete and never writes."""


class ForeignTrainingConfig(TrainingConfig):
    """The run; with several models, the data of each."""

    unsupported_keys: ClassVar[dict[str, object]] = {
        key: value for key, value in unsupported.TRAINING.items() if key not in _SUPPORTED
    }

    training_data: TrainingDataConfig | None = None  # type: ignore[assignment]
    """The data to train on."""
    data_dict: dict[str, BranchConfig] | None = None
    """The data of each model of `model_dict`."""
    model_prob: dict[str, NonNegative] | None = None
    """How often each model is trained, relative to the others; by the sizes of their data where it is not given."""
    num_epoch_dict: dict[str, Positive] | None = None
    """Number of passes over the data of each model, instead of `numb_steps`."""

    @property
    def validation_batches(self) -> int:
        sections = [part.validation_data for part in (self.data_dict or {}).values()]
        return max([super().validation_batches, *(section.numb_btch for section in sections if section)])

    def findings(self) -> Iterator[Finding]:
        """Yield data that are missing or given twice, and a run without a length."""
        if (self.training_data is None) == (self.data_dict is None):
            both = self.training_data is not None
            yield Finding("training_data", "excludes data_dict" if both else "required, but not given")
        if self.num_epoch_dict is None or self.numb_steps is not None or self.numb_epoch is not None:
            yield from super().findings()
            if self.num_epoch_dict is not None:
                yield Finding("num_epoch_dict", "excludes numb_steps", "keep one of them")


class ForeignInput(RawInput):
    """An input whose model and loss DeePMD-kit builds; learning rate, data and the run itself are this program's."""

    unsupported_keys: ClassVar[dict[str, object]] = {
        key: value for key, value in unsupported.TOP_LEVEL.items() if key != "loss_dict"
    }
    optimizer: Annotated[
        OptimizerConfig | ForeignOptimizer, Field(discriminator="type"), Tags("Adam", unsupported.OPTIMIZER_TYPES)
    ] = AdamConfig()  # type: ignore[assignment]
    """How gradients become changes of the weights."""
    loss_dict: dict[str, Any] | None = None
    """What is minimised by each model of `model_dict`."""
    training: ForeignTrainingConfig
    """The run: data, length, files, display."""

    @property
    def branches(self) -> dict[str, dict[str, Any]]:
        """The models of `model_dict`; empty for a run of one model."""
        return dict(self.model.get("model_dict", {}))

    @property
    def type_map(self) -> tuple[str, ...]:
        return tuple(_type_map(self.model, next(iter(self.branches.values()), self.model)))

    def only(self, name: str) -> ForeignInput:
        """The input of one of the models, as if it were alone."""
        losses, shared = self.loss_dict or {}, self.model.get("shared_dict", {})
        model = {key: _resolved(value, shared) for key, value in self.branches[name].items()}
        return self.model_copy(update={"model": model, "loss": losses.get(name, {}), "loss_dict": None})

    def findings(self) -> Iterator[Finding]:
        """Yield what does not fit together across sections."""
        branches = self.branches
        for name, branch in (branches or {"": self.model}).items():
            names = _type_map(self.model, branch)
            if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names) or not names:
                where = f"model.model_dict.{name}.type_map" if name else "model.type_map"
                yield Finding(where, "expected the names of the atom types, as a list")
            for key in ("descriptor", "fitting_net"):
                part = branch.get(key)
                if isinstance(part, str) and part.partition(":")[0] not in self.model.get("shared_dict", {}):
                    yield Finding(f"model.model_dict.{name}.{key}", "model.shared_dict has no such part")
        for key in ("data_dict", "model_prob", "num_epoch_dict"):
            yield from _same_names(key, getattr(self.training, key), branches)
        yield from self._optimizer_findings()
        yield from common_findings(self)

    def _optimizer_findings(self) -> Iterator[Finding]:
        """Yield what DeePMD-kit's optimizers cannot be combined with."""
        if not isinstance(self.optimizer, ForeignOptimizer):
            return
        name = self.optimizer.type
        if self.training.zero_stage:
            yield Finding("training.zero_stage", f"{name} keeps its whole state on every rank", "leave it out")
        if not isinstance(self.optimizer, KalmanConfig):
            return
        if self.training.gradient_max_norm:
            yield Finding(
                "training.gradient_max_norm", "a Kalman filter needs the gradients as they are", "leave it out"
            )
        if self.branches:
            yield Finding("optimizer.type", "LKF trains one model, not several of model_dict", "use Adam")
        elif (self.loss or {}).get("type", "ener") != "ener":
            yield Finding("optimizer.type", "LKF filters energies and forces: it needs a loss of type ener", "use Adam")


def _resolved(value: Any, shared: dict[str, Any]) -> Any:
    """A part of a model, or that of `shared_dict` which it names, with or without a level behind a colon."""
    if isinstance(value, str) and value.partition(":")[0] in shared:
        return shared[value.partition(":")[0]]
    if isinstance(value, dict) and value.get("type") == "hybrid":
        return {**value, "list": [_resolved(part, shared) for part in value.get("list", [])]}
    return value


def _type_map(model: dict[str, Any], branch: dict[str, Any]) -> Any:
    """The type map of a branch, or that of `shared_dict` which it names, or that of the models it adds up."""
    parts = [part.get("type_map") for part in branch.get("models", []) if isinstance(part, dict)]
    names = branch.get("type_map") or next(filter(None, parts), None)
    return model.get("shared_dict", {}).get(names) if isinstance(names, str) else names


def _same_names(key: str, given: dict[str, Any] | None, branches: dict[str, Any]) -> Iterator[Finding]:
    if given is None and not (branches and key == "data_dict"):
        return
    missing, strange = sorted(branches.keys() - (given or {})), sorted((given or {}).keys() - branches.keys())
    if missing or strange:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing)
        parts += [f"has {', '.join(strange)}, which model.model_dict has not"] * bool(strange)
        yield Finding(f"training.{key}", " and ".join(parts), "give one entry for each model of model.model_dict")


def load_any_input(path: str | Path) -> AnyInput:
    """Read and check an input file, whoever builds its model.

    Raises:
        InputError: the file cannot be read or parsed, or its content is wrong; all mistakes at once.
    """
    return parse_any_input(read_file(Path(path)), source=str(path))


def parse_any_input(data: object, source: str = "input") -> AnyInput:
    """The same for content that was already parsed."""
    if isinstance(data, dict) and data.get("nvnmd") is not None:
        raise InputError("is trained by a program of DeePMD-kit's own", where="nvnmd", remedy="dp train-nvnmd INPUT")
    if not isinstance(data, dict) or "model" not in data:
        return parse_input(data, source)
    native, problems = examine(Input, data)
    if native is not None:
        return native
    if not foreign_parts(problems):
        raise combine(problems, source)
    foreign, problems = examine(ForeignInput, data)
    if foreign is None:
        raise combine(problems, source)
    return foreign


def foreign_parts(problems: list[Problem]) -> list[Problem]:
    """Those objections of the native check that are none for DeePMD-kit."""
    return [each for each in problems if each.reason.startswith(NOT_YET) and each.where.startswith(_THEIRS)]


def is_foreign(config: Section) -> bool:
    """Whether DeePMD-kit builds what this input trains."""
    return isinstance(config, ForeignInput)
