"""The `model` section: descriptor and fitting net."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from lockstep.config import unsupported
from lockstep.config.descriptors import DESCRIPTORS, OTHER_NAMES, DescriptorConfig
from lockstep.config.nets import Activation, MaybeNoWidths, Precision
from lockstep.config.section import (
    Aliases,
    Count,
    FewNumbers,
    Finding,
    Flag,
    NonNegative,
    Number,
    Section,
    Seed,
    Tags,
    Text,
    wrong,
)


def _trainable(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, list | tuple) and all(isinstance(x, bool) for x in value)):
        return value
    raise wrong("expected true, false, or a list of them with one for each layer")


class EnergyFittingConfig(Section):
    """The fitting net that gives atomic energies."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.FITTING_NET

    type: Literal["ener"] = "ener"
    """The quantity fitted: the energy."""
    numb_fparam: FewNumbers = 0
    """How many parameters each frame brings in `fparam.npy`."""
    numb_aparam: FewNumbers = 0
    """How many parameters each atom brings in `aparam.npy`."""
    neuron: Annotated[MaybeNoWidths, Aliases("n_neuron")] = (120, 120, 120)
    """Widths of the hidden layers of the fitting net; with an empty list the energy is linear in the descriptor."""
    activation_function: Activation = "tanh"
    """Activation function of the fitting net."""
    precision: Precision = "default"
    """Floating-point format of the fitting net; `default` is float64."""
    resnet_dt: Flag = True
    """Multiply each skip-connected layer by a learned time step."""
    trainable: Annotated[bool | tuple[bool, ...], BeforeValidator(_trainable)] = True
    """Whether the net is trained: all of it, or one answer per hidden layer and one for the output."""
    rcond: NonNegative | None = None
    """Singular values below this fraction of the largest are dropped in the fit of the energy bias."""
    seed: Seed = None
    """Seed of the initial weights; null draws a new one."""
    atom_ener: tuple[Number | None, ...] = ()
    """Energy of a lone atom of each type, kept as its bias; null where it is to be fitted."""

    @property
    def trainable_layers(self) -> tuple[bool, ...]:
        """Whether each layer is trained: the hidden ones, then the output."""
        if isinstance(self.trainable, bool):
            return (self.trainable,) * (len(self.neuron) + 1)
        return self.trainable

    def findings(self) -> Iterator[Finding]:
        """Yield a `trainable` list that does not fit the layers."""
        if len(self.trainable_layers) != len(self.neuron) + 1:
            yield Finding("trainable", f"needs {len(self.neuron) + 1} entries: the hidden layers and the output")


class ModelConfig(Section):
    """The potential: atom types, descriptor, fitting net, statistics."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.MODEL

    type: Literal["standard"] = "standard"
    """The kind of model: a descriptor followed by a fitting net."""
    type_map: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]
    """Names of the atom types, in the order of their numbers."""
    descriptor: Annotated[DescriptorConfig, Tags(None, unsupported.DESCRIPTOR_TYPES, OTHER_NAMES, DESCRIPTORS)]
    """How the surroundings of an atom are described."""
    fitting_net: Annotated[EnergyFittingConfig, Tags("ener", unsupported.FITTING_TYPES)]
    """How the description becomes an energy."""
    data_stat_nbatch: Count = 10
    """Number of batches of each system from which the statistics of environments are taken; the energy bias comes from
    all frames."""
    data_stat_protect: NonNegative = 0.01
    """Smallest standard deviation by which frame and atomic parameters are divided."""

    def findings(self) -> Iterator[Finding]:
        """Yield lists that do not fit the atom types, and a model with nothing to train."""
        if not (self.descriptor.is_trained() or any(self.fitting_net.trainable_layers)):
            yield Finding(
                "fitting_net.trainable", "nothing is trainable: model.descriptor.trainable is false too", "train a part"
            )
        n = len(self.type_map)
        types = f"model.type_map has {n} type{'s' * (n > 1)}"
        doubled = [name for name, times in Counter(self.type_map).items() if times > 1]
        if doubled:
            yield Finding("type_map", f"{', '.join(doubled)} occurs more than once")
        energies = self.fitting_net.atom_ener
        if energies and len(energies) != n:
            reason = f"has {len(energies)} entries, but {types}"
            yield Finding("fitting_net.atom_ener", reason, "give one number per type, null for those to be fitted")
        yield from (replace(each, key=f"descriptor.{each.key}") for each in self.descriptor.misfits(self.type_map))
