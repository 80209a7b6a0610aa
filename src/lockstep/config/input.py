"""The whole input file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, ValidationError

from lockstep.config import unsupported
from lockstep.config.descriptors import DESCRIPTORS, MEMBERS, DescriptorConfig, HybridConfig, OneCutoff
from lockstep.config.learning_rate import LearningRateConfig
from lockstep.config.loss import LossConfig
from lockstep.config.messages import translate
from lockstep.config.model import ModelConfig
from lockstep.config.optimizer import AdamConfig, OptimizerConfig
from lockstep.config.parse import read_file
from lockstep.config.problem import Problem, combine
from lockstep.config.section import Finding, Section, Tags
from lockstep.config.training import TrainingConfig
from lockstep.config.validating import ValidatingConfig
from lockstep.config.walk import Walk
from lockstep.errors import InputError

LearningRateField = Annotated[LearningRateConfig, Field(discriminator="type"), Tags("exp", ())]
OptimizerField = Annotated[OptimizerConfig, Field(discriminator="type"), Tags("Adam", unsupported.OPTIMIZER_TYPES)]


class Input(Section):
    """An input file: typed, with every default filled in, free of contradictions."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.TOP_LEVEL

    model: Annotated[ModelConfig, Tags("standard", unsupported.MODEL_TYPES)]
    """The potential."""
    learning_rate: LearningRateField
    """How the learning rate changes during training."""
    optimizer: OptimizerField = AdamConfig()
    """How gradients become changes of the weights."""
    loss: Annotated[LossConfig, Tags("ener", unsupported.LOSS_TYPES, (("ener_hess", "ener"),))] = LossConfig()
    """What is minimised."""
    training: TrainingConfig
    """The run: data, length, files, display."""
    validating: ValidatingConfig = ValidatingConfig()
    """A look at all validation data now and then, by which the best weights are kept."""

    @property
    def type_map(self) -> tuple[str, ...]:
        return self.model.type_map

    def dump(self) -> dict[str, Any]:
        """Return the input as plain data with all defaults, which `parse_input` reads back to the same."""
        return self.model_dump(mode="json")

    def findings(self) -> Iterator[Finding]:
        """Yield what does not fit together across sections."""
        yield from common_findings(self)
        precision = self.model.fitting_net.precision
        if self.training.mixed_precision is not None and precision == "float32":
            reason = "needs a fitting net in float64, and model.fitting_net.precision is float32"
            yield Finding("training.mixed_precision", reason, "leave one of them out")


class RawInput(Section):
    """An input file whose model and loss are not this program's own: what they hold is the task's affair."""

    model: dict[str, Any]
    """The model, with at least the names of its atom types."""
    learning_rate: LearningRateField
    """How the learning rate changes during training."""
    optimizer: OptimizerField = AdamConfig()
    """How gradients become changes of the weights."""
    loss: dict[str, Any] = Field(default_factory=dict)
    """What is minimised."""
    training: TrainingConfig
    """The run: data, length, files, display."""
    validating: ValidatingConfig = ValidatingConfig()
    """A look at all validation data now and then, by which the best weights are kept."""

    @property
    def type_map(self) -> tuple[str, ...]:
        return tuple(self.model["type_map"])

    def dump(self) -> dict[str, Any]:
        """Return the input as plain data with all defaults of the sections that are known."""
        return self.model_dump(mode="json")

    def findings(self) -> Iterator[Finding]:
        """Yield what does not fit together across sections."""
        names = self.model.get("type_map")
        if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
            yield Finding("model.type_map", "expected the names of the atom types, as a list")
        yield from common_findings(self)


AnyInput = Input | RawInput


def common_findings(config: AnyInput) -> Iterator[Finding]:
    """A warm-up that leaves nothing of the run, and a validation of no data."""
    steps, warmup = config.training.numb_steps, config.learning_rate.warmup_steps
    if steps is not None and warmup >= steps:
        yield Finding("learning_rate.warmup_steps", f"must be smaller than training.numb_steps = {steps}")
    if config.validating.full_validation and config.training.validation_data is None:
        remedy = "give training.validation_data, or leave validating.full_validation out"
        yield Finding("validating.full_validation", "there are no validation data", remedy)


def load_input(path: str | Path) -> Input:
    """Read and check an input file, JSON or (by its suffix) YAML.

    Raises:
        InputError: the file cannot be read or parsed, or its content is wrong; all mistakes at once.
    """
    return parse_input(read_file(Path(path)), source=str(path))


def load_raw_input(path: str | Path) -> RawInput:
    """The same for an input whose model and loss are left as they are."""
    return parse_raw_input(read_file(Path(path)), source=str(path))


def parse_input(data: object, source: str = "input") -> Input:
    """Check the content of an input file that was already parsed; `source` names it in errors."""
    return _parse(Input, data, source)


def parse_raw_input(data: object, source: str = "input") -> RawInput:
    """The same for an input whose model and loss are left as they are."""
    return _parse(RawInput, data, source)


def parse_model(data: object, source: str = "model") -> ModelConfig:
    """The same for a `model` section alone, such as other programs keep with a model."""
    return _parse(ModelConfig, data, source)


def register_descriptor(section: type[DescriptorConfig]) -> None:
    """Let `model.descriptor.type` choose a section that is not in the table, from now on."""
    tag = section.model_fields["type"].default
    DESCRIPTORS[tag] = section
    if issubclass(section, OneCutoff):
        MEMBERS[tag] = section
    rebuild_sections()


def rebuild_sections() -> None:
    """Take the table of descriptors as it is now: pydantic compiles its checks when a class is made."""
    for cls in (HybridConfig, ModelConfig, Input):
        cls.model_rebuild(force=True)


Parsed = TypeVar("Parsed", bound=Section)


def _parse(cls: type[Parsed], data: object, source: str) -> Parsed:
    if not isinstance(data, dict):
        raise InputError(
            "expected an object {...} with the sections model, learning_rate, loss, training", where=source
        )
    if "model" not in data and "n_neuron" in data:
        remedy = "let DeePMD-kit 2 or later convert it, or rewrite it in sections"
        raise InputError("this is an input file of DeePMD-kit version 0, without sections", where=source, remedy=remedy)
    result, problems = examine(cls, data)
    if result is None:
        raise combine(problems, source)
    return result


def examine(cls: type[Parsed], data: dict[Any, Any]) -> tuple[Parsed | None, list[Problem]]:
    """The content of a file as an input of one class, or None, and all that is wrong with it."""
    walk = Walk()
    clean = walk.section(cls, data)
    result, problems = _validate(cls, clean, walk)
    return (None if problems else result), problems


def _validate(cls: type[Parsed], clean: dict[str, Any], walk: Walk) -> tuple[Parsed | None, list[Problem]]:
    try:
        return cls.model_validate(clean), walk.problems
    except ValidationError as error:
        return None, [*walk.problems, *translate(error, walk, clean)]
