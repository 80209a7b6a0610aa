"""What all descriptors have in common in the input file: cutoffs, slots, nets.

All that other parts of the program need to know of a descriptor without building it is here: its cutoffs, and how `sel`
is settled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator

from lockstep.config.cutoff import UNLIMITED, Cutoff
from lockstep.config.nets import Activation, Precision, Widths
from lockstep.config.section import (
    Finding,
    Flag,
    NaturalNumber,
    NonNegative,
    Radius,
    Section,
    Seed,
    is_count,
    wrong,
)

Sel = str | tuple[int, ...] | int
"""Slots for each neighbour type, or for all types together; or `auto` and `auto:FACTOR`."""
Chosen = TypeVar("Chosen", bound="DescriptorConfig")
MOST_SLOTS, _MOST_ROOM = 1_000_000, 100
"""Beyond these numbers of neighbours, and these factors for more of them, it is a slip of the pen."""
TypePair = tuple[NaturalNumber, NaturalNumber]


def checked_sel(value: Any) -> Any:
    if isinstance(value, str):
        match = re.fullmatch(r"auto(?::(\d+(?:\.\d*)?))?", value)
        if match and (match[1] is None or 1 <= float(match[1]) <= _MOST_ROOM):
            return value
        raise wrong("expected 'auto', 'auto:FACTOR' with a factor from 1 to 100, or one number per type")
    if not isinstance(value, list | tuple):
        raise wrong("expected 'auto', 'auto:FACTOR', or a list with one number per type")
    if not all(is_count(each, MOST_SLOTS) for each in value):
        raise wrong("each entry must be a positive integer up to 1000000: the most neighbours of that type to expect")
    return tuple(map(int, value))


def _spectral(value: Any) -> Any:
    if value in ("auto", "off"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise wrong("expected 'auto', 'off', a number of intervals (8 to 512), or a tolerance below 1")
    if value >= 1 and not (8 <= value <= 512 and value == int(value)):
        raise wrong("a number of intervals is a whole number from 8 to 512")
    return float(value)


def settled_sel(sel: str, count: int) -> int:
    """Slots for `count` neighbours as DeePMD-kit reserves them: `auto`'s factor times as many without the fraction,
    then up to a multiple of four. At least four: who is nobody's neighbour in the data may become one elsewhere."""
    factor = float(sel.partition(":")[2] or 1.1)
    return max(4, (int(count * factor) + 3) // 4 * 4)


class DescriptorConfig(Section):
    """How the surroundings of an atom are described."""

    type: str
    """The kind of descriptor."""

    def parts(self) -> tuple[OneCutoff, ...]:
        """The descriptors with a cutoff of their own: this one, or those it is put together from."""
        raise NotImplementedError

    def with_sel(self: Chosen, sel: Sequence[Sel]) -> Chosen:
        """The same with other numbers of slots, one entry for each part."""
        raise NotImplementedError

    def cutoffs(self, ntypes: int) -> tuple[Cutoff, ...]:
        """What counts as a neighbour, part by part. As long as `sel` is not settled, everyone has a slot."""
        return tuple(part.cutoff(ntypes) for part in self.parts())

    def seeds(self) -> list[int] | None:
        """What the initial weights are drawn from; None for new ones."""
        drawn = [part.seed for part in self.parts()]
        return None if None in drawn else [seed for seed in drawn if seed is not None]

    def is_trained(self) -> bool:
        """Whether any part of it is trained."""
        return any(part.trainable for part in self.parts())

    def misfits(self, type_map: Sequence[str]) -> Iterator[Finding]:
        """Yield what does not fit the atom types."""
        raise NotImplementedError


class OneCutoff(DescriptorConfig):
    """A descriptor of the neighbours within one cutoff."""

    sel: Annotated[Sel, BeforeValidator(checked_sel)] = "auto"
    """Most neighbours expected within `rcut`, one number per type; `auto` or `auto:FACTOR` counts them in the
    data and multiplies by 1.1 or by FACTOR."""
    rcut: Radius = 6.0
    """Cut-off radius in angstrom."""
    rcut_smth: NonNegative = 0.5
    """Radius in angstrom from which the weight of a neighbour falls smoothly to zero at `rcut`."""
    neuron: Widths = (10, 20, 40)
    """Widths of the layers of the embedding net."""
    activation_function: Activation = "tanh"
    """Activation function of the embedding net."""
    resnet_dt: Flag = False
    """Multiply each skip-connected layer by a learned time step."""
    precision: Precision = "default"
    """Floating-point format of the embedding net; `default` is float64."""
    exclude_types: tuple[TypePair, ...] = ()
    """Pairs of type numbers that do not see each other."""
    env_protection: NonNegative = 0.0
    """Number added to distances before dividing by them, against division by zero."""
    set_davg_zero: Flag = False
    """Take zero as the mean of the environment rows instead of the mean of the data."""
    seed: Seed = None
    """Seed of the initial weights; null draws a new one."""
    trainable: Flag = True
    """Whether the embedding net is trained."""
    spectral: Annotated[Literal["auto", "off"] | float, BeforeValidator(_spectral)] = "auto"
    """Expand the embedding nets in splines during training, which is faster and changes neither the weights nor the
    exported model: `auto` (as finely as an error of 1e-5 asks for), `off` (always evaluate the nets for every
    neighbour), a number of intervals from 8 to 512, or another tolerance below 1. Nets that 512 intervals do not
    expand well enough are evaluated exactly, and the log says so."""

    def parts(self) -> tuple[OneCutoff, ...]:
        return (self,)

    def with_sel(self: Chosen, sel: Sequence[Sel]) -> Chosen:
        (own,) = sel
        return self.model_copy(update={"sel": own})

    def cutoff(self, ntypes: int) -> Cutoff:
        return Cutoff(
            rcut=self.rcut,
            rcut_smth=self.rcut_smth,
            sel=self.sel if isinstance(self.sel, tuple) else (UNLIMITED,) * ntypes,
            exclude=frozenset((a, b) for a, b in self.exclude_types),
            protection=self.env_protection,
        )

    def settled(self, most: Sequence[int]) -> Sel:
        """`sel` in numbers: where it is `auto`, the most neighbours of each type (the last entry is for all types
        together) with some room above."""
        if not isinstance(self.sel, str):
            return self.sel
        return tuple(settled_sel(self.sel, count) for count in most[:-1])

    def shortages(self, type_map: Sequence[str], most: Sequence[int]) -> list[str]:
        """In words, where neighbours outnumber slots; `most` has the most of each type, and of all together."""
        have = self.sel if isinstance(self.sel, tuple) else ()
        return [
            f"{name} ({slots} slots, {need} neighbours)"
            for name, slots, need in zip(type_map, have, most, strict=False)
            if need > slots
        ]

    def findings(self) -> Iterator[Finding]:
        """Yield radii in the wrong order."""
        if self.rcut_smth >= self.rcut:
            yield Finding("rcut_smth", f"must be smaller than rcut = {self.rcut:g}")

    def misfits(self, type_map: Sequence[str]) -> Iterator[Finding]:
        """Yield lists that do not fit the atom types."""
        ntypes = len(type_map)
        types = f"model.type_map has {ntypes} type{'s' * (ntypes > 1)}"
        if isinstance(self.sel, tuple) and len(self.sel) != ntypes:
            yield Finding("sel", f"has {len(self.sel)} entries, but {types}", "give one number per type")
        if any(t >= ntypes for pair in self.exclude_types for t in pair):
            yield Finding("exclude_types", f"type numbers must be below {ntypes}, because {types}")
