"""The `model` section: descriptor and fitting net."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from lockstep.config import unsupported
from lockstep.config.section import (
    Aliases,
    Count,
    Finding,
    Flag,
    NaturalNumber,
    NonNegative,
    Number,
    Positive,
    Section,
    Seed,
    Tags,
    Text,
    is_count,
    wrong,
)

ACTIVATIONS = (
    "tanh",
    "relu",
    "relu6",
    "softplus",
    "sigmoid",
    "gelu",
    "gelu_tf",
    "silu",
    "silut",
    "none",
    "linear",
)
_LATER_PRECISIONS = ("float16", "bfloat16")


def _activation(value: Any) -> Any:
    name = value.lower() if isinstance(value, str) else value
    if name in ACTIVATIONS or (isinstance(name, str) and re.fullmatch(r"silut:\d+(\.\d*)?", name)):
        return name
    raise wrong(f"expected one of {', '.join(ACTIVATIONS)}, or silut:N with a number N")


def _precision(value: Any) -> Any:
    if value in _LATER_PRECISIONS:
        raise wrong("not supported yet", "use float32, float64 or default (float64)")
    return value


def _sel(value: Any) -> Any:
    if isinstance(value, str):
        match = re.fullmatch(r"auto(?::(\d+(?:\.\d*)?))?", value)
        if match and (match[1] is None or float(match[1]) >= 1):
            return value
        raise wrong("expected 'auto', 'auto:FACTOR' with a factor of at least 1, or one number per type")
    if not isinstance(value, list | tuple):
        raise wrong("expected 'auto', 'auto:FACTOR', or a list with one number per type")
    if not all(map(is_count, value)):
        raise wrong("each entry must be a positive integer: the most neighbours of that type to expect")
    return tuple(map(int, value))


def _spectral(value: Any) -> Any:
    if value in ("auto", "off"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise wrong("expected 'auto', 'off', a number of intervals (8 to 512), or a tolerance below 1")
    if value >= 1 and not (8 <= value <= 512 and value == int(value)):
        raise wrong("a number of intervals is a whole number from 8 to 512")
    return float(value)


def _trainable(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, list | tuple) and all(isinstance(x, bool) for x in value)):
        return value
    raise wrong("expected true, false, or a list of them with one for each layer")


Activation = Annotated[str, BeforeValidator(_activation)]
Precision = Annotated[Literal["default", "float32", "float64"], BeforeValidator(_precision)]
Widths = Annotated[tuple[Count, ...], Field(min_length=1)]
TypePair = tuple[NaturalNumber, NaturalNumber]


class SeE2AConfig(Section):
    """The two-body embedding descriptor with full information, `se_e2_a`."""

    type: Literal["se_e2_a"] = "se_e2_a"
    """The descriptor: two-body embedding with full information."""
    sel: Annotated[str | tuple[int, ...], BeforeValidator(_sel)] = "auto"
    """Most neighbours expected within `rcut`, one number per type; `auto` or `auto:FACTOR` counts them in the
    data and multiplies by 1.1 or by FACTOR."""
    rcut: Positive = 6.0
    """Cut-off radius in angstrom."""
    rcut_smth: NonNegative = 0.5
    """Radius in angstrom from which the weight of a neighbour falls smoothly to zero at `rcut`."""
    neuron: Widths = (10, 20, 40)
    """Widths of the layers of the embedding net."""
    axis_neuron: Annotated[Count, Aliases("n_axis_neuron")] = 4
    """Number of columns of the embedding that make the second axis of the descriptor."""
    activation_function: Activation = "tanh"
    """Activation function of the embedding net."""
    resnet_dt: Flag = False
    """Multiply each skip-connected layer by a learned time step."""
    type_one_side: Flag = False
    """One embedding net per neighbour type, instead of one per pair of centre and neighbour types."""
    precision: Precision = "default"
    """Floating-point format of the embedding net; `default` is float64."""
    trainable: Flag = True
    """Whether the embedding net is trained."""
    seed: Seed = None
    """Seed of the initial weights; null draws a new one."""
    exclude_types: tuple[TypePair, ...] = ()
    """Pairs of type numbers that do not see each other."""
    env_protection: NonNegative = 0.0
    """Number added to distances before dividing by them, against division by zero."""
    set_davg_zero: Flag = False
    """Take zero as the mean of the environment rows instead of the mean of the data."""
    spectral: Annotated[Literal["auto", "off"] | float, BeforeValidator(_spectral)] = "auto"
    """Expand the embedding nets in splines during training, which is faster and changes neither the weights nor the
    exported model: `auto` (as finely as an error of 1e-5 asks for), `off` (always evaluate the nets for every
    neighbour), a number of intervals, or another tolerance below 1."""

    def findings(self) -> Iterator[Finding]:
        """Yield radii in the wrong order and an axis wider than the embedding."""
        if self.rcut_smth >= self.rcut:
            yield Finding("rcut_smth", f"must be smaller than rcut = {self.rcut:g}")
        if self.axis_neuron > self.neuron[-1]:
            yield Finding("axis_neuron", f"must not exceed the last width in neuron, {self.neuron[-1]}")


class EnergyFittingConfig(Section):
    """The fitting net that gives atomic energies."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.FITTING_NET

    type: Literal["ener"] = "ener"
    """The quantity fitted: the energy."""
    numb_fparam: NaturalNumber = 0
    """How many parameters each frame brings in `fparam.npy`."""
    numb_aparam: NaturalNumber = 0
    """How many parameters each atom brings in `aparam.npy`."""
    neuron: Annotated[Widths, Aliases("n_neuron")] = (120, 120, 120)
    """Widths of the hidden layers of the fitting net."""
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
    type_map: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names of the atom types, in the order of their numbers."""
    descriptor: Annotated[SeE2AConfig, Tags(None, unsupported.DESCRIPTOR_TYPES, (("se_a", "se_e2_a"),))]
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
        if not (self.descriptor.trainable or any(self.fitting_net.trainable_layers)):
            yield Finding(
                "fitting_net.trainable", "nothing is trainable: model.descriptor.trainable is false too", "train a part"
            )
        n = len(self.type_map)
        types = f"model.type_map has {n} type{'s' * (n > 1)}"
        doubled = [name for name, times in Counter(self.type_map).items() if times > 1]
        if doubled:
            yield Finding("type_map", f"{', '.join(doubled)} occurs more than once")
        sel, energies = self.descriptor.sel, self.fitting_net.atom_ener
        if not isinstance(sel, str) and len(sel) != n:
            yield Finding("descriptor.sel", f"has {len(sel)} entries, but {types}", "give one number per type")
        if energies and len(energies) != n:
            reason = f"has {len(energies)} entries, but {types}"
            yield Finding("fitting_net.atom_ener", reason, "give one number per type, null for those to be fitted")
        if any(t >= n for pair in self.descriptor.exclude_types for t in pair):
            yield Finding("descriptor.exclude_types", f"type numbers must be below {n}, because {types}")
