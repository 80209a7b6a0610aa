"""Descriptors in the input file: what a model says about the surroundings of an atom.

A section's `type` chooses its class from one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lockstep.config import unsupported
from lockstep.config.cutoff import Cutoff
from lockstep.config.descriptor import MOST_SLOTS, Chosen, DescriptorConfig, OneCutoff, Sel, checked_sel, settled_sel
from lockstep.config.elements import ELEMENTS
from lockstep.config.section import (
    Aliases,
    Count,
    Finding,
    Flag,
    NaturalNumber,
    NonNegative,
    Number,
    Positive,
    Tags,
    Width,
    is_count,
)


def _shared_sel(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return sum(checked_sel(value))
    return int(value) if is_count(value, MOST_SLOTS) else checked_sel(value)


class SeE2AConfig(OneCutoff):
    """The two-body embedding descriptor with full information, `se_e2_a`."""

    type: Literal["se_e2_a"] = "se_e2_a"
    """The descriptor: two-body embedding with full information."""
    axis_neuron: Annotated[Width, Aliases("n_axis_neuron")] = 4
    """Number of columns of the embedding that make the second axis of the descriptor."""
    type_one_side: Flag = False
    """One embedding net per neighbour type, instead of one per pair of centre and neighbour types."""

    def findings(self) -> Iterator[Finding]:
        """Yield an axis wider than the embedding, too."""
        yield from super().findings()
        yield from _axis_findings(self.axis_neuron, self.neuron)


class SeE2RConfig(OneCutoff):
    """The two-body embedding descriptor with radial information only, `se_e2_r`."""

    type: Literal["se_e2_r"] = "se_e2_r"
    """The descriptor: two-body embedding with radial information only."""
    type_one_side: Flag = False
    """One embedding net per neighbour type, instead of one per pair of centre and neighbour types. DeePMD-kit's PyTorch
    backend knows only the former, and misreads models of several types with the latter."""


class _Atten(OneCutoff):
    """What the descriptors with a type embedding have in common. Only those without attention are native."""

    unsupported_keys: ClassVar[dict[str, object]] = {"lmax": 1, "attn_mask": False}

    sel: Annotated[str | int, BeforeValidator(_shared_sel)] = "auto"
    """Most neighbours expected within `rcut`, whatever their type: a number, or a list of which the sum counts; `auto`
    or `auto:FACTOR` counts them in the data and multiplies by 1.1 or by FACTOR."""
    axis_neuron: Annotated[Width, Aliases("n_axis_neuron")] = 4
    """Number of columns of the embedding that make the second axis of the descriptor."""
    type_one_side: Flag = False
    """The embedding net sees the type of the neighbour only, not that of the centre too."""
    attn_layer: NaturalNumber = 2
    """Number of attention layers. Without them (0) the descriptor is native; with them it is DeePMD-kit's."""
    attn: Count = 128
    """Width of the attention layers."""
    attn_dotr: Flag = True
    """Attention is weighted by the angle between neighbours."""
    trainable_ln: Flag = True
    """Whether the layer normalisation of the attention layers is trained."""
    ln_eps: NonNegative | None = None
    """Number added to variances in the layer normalisation of the attention layers."""
    scaling_factor: Positive = 1.0
    """Factor in the normalisation of attention weights."""
    normalize: Flag = True
    """Normalise the hidden vectors of the attention layers."""
    temperature: Number | None = None
    """Scale of attention weights, in place of that by width and `scaling_factor`."""
    tebd_dim: Width = 8
    """Width of the type embedding."""
    use_econf_tebd: Flag = False
    """Make the type embedding from the elements' electronic configurations; types are then named after elements."""
    use_tebd_bias: Flag = False
    """The type embedding has a bias."""
    concat_output_tebd: Flag = True
    """Append the centre's type embedding to the descriptor."""

    @property
    def stripped(self) -> bool:
        """A net of the type embeddings multiplies the net of the radial number, instead of both being one net."""
        raise NotImplementedError

    @property
    def smooth(self) -> bool:
        """The multiplication fades with the switching function."""
        raise NotImplementedError

    def with_sel(self: Chosen, sel: Sequence[Sel]) -> Chosen:
        (own,) = sel
        return self.model_copy(update={"sel": sum(own) if isinstance(own, tuple) else own})

    def cutoff(self, ntypes: int) -> Cutoff:
        return replace(super().cutoff(ntypes), shared=self.sel if isinstance(self.sel, int) else None)

    def settled(self, most: Sequence[int]) -> Sel:
        return settled_sel(self.sel, most[-1]) if isinstance(self.sel, str) else self.sel

    def shortages(self, type_map: Sequence[str], most: Sequence[int]) -> list[str]:
        if isinstance(self.sel, int) and most[-1] > self.sel:
            return [f"all types together ({self.sel} slots, {most[-1]} neighbours)"]
        return []

    def findings(self) -> Iterator[Finding]:
        """Yield an axis wider than the embedding, and attention."""
        yield from super().findings()
        yield from _axis_findings(self.axis_neuron, self.neuron)
        if self.attn_layer:
            reason = f"not supported yet: attention is not native, and attn_layer is {self.attn_layer}"
            yield Finding("attn_layer", reason, "set it to 0")

    def misfits(self, type_map: Sequence[str]) -> Iterator[Finding]:
        """Yield types that are no elements where these are asked for, too."""
        yield from super().misfits(type_map)
        strangers = [name for name in type_map if name not in ELEMENTS]
        if self.use_econf_tebd and strangers:
            yield Finding("use_econf_tebd", f"model.type_map has {', '.join(strangers)}, which is no element")


class SeAttenConfig(_Atten):
    """The descriptor with a type embedding, `se_atten` or `dpa1`."""

    type: Literal["se_atten"] = "se_atten"
    """The descriptor: two-body embedding that sees types through a type embedding."""
    set_davg_zero: Flag = True
    """Take zero as the mean of the environment rows instead of the mean of the data."""
    tebd_input_mode: Literal["concat", "strip"] = "concat"
    """`concat`: one net of the radial number and the type embeddings; `strip`: a net of the type embeddings that
    multiplies the net of the radial number."""
    stripped_type_embedding: Flag | None = None
    """Older form of `tebd_input_mode`: true means `strip`, false `concat`."""
    smooth_type_embedding: Annotated[Flag, Aliases("smooth_type_embdding")] = False
    """In `strip` mode, let the multiplication fade with the switching function."""

    @model_validator(mode="before")
    @classmethod
    def _newer_form(cls, data: Any) -> Any:
        given = data.get("stripped_type_embedding") if isinstance(data, dict) else None
        if not isinstance(given, bool):
            return data
        return {**data, "stripped_type_embedding": None, "tebd_input_mode": "strip" if given else "concat"}

    @property
    def stripped(self) -> bool:
        return self.tebd_input_mode == "strip"

    @property
    def smooth(self) -> bool:
        return self.smooth_type_embedding


class SeAttenV2Config(_Atten):
    """The second version of `se_atten`: always `strip`, always smooth."""

    type: Literal["se_atten_v2"] = "se_atten_v2"
    """The descriptor: `se_atten` in `strip` mode with a smooth type embedding."""

    @property
    def stripped(self) -> bool:
        return True

    @property
    def smooth(self) -> bool:
        return True


MEMBERS: dict[str, type[DescriptorConfig]] = {
    "se_e2_a": SeE2AConfig,
    "se_e2_r": SeE2RConfig,
    "se_atten": SeAttenConfig,
    "se_atten_v2": SeAttenV2Config,
}
"""The sections that a `hybrid` can be put together from."""
OTHER_NAMES = (("se_a", "se_e2_a"), ("se_r", "se_e2_r"), ("dpa1", "se_atten"))


class HybridConfig(DescriptorConfig):
    """Several descriptors side by side, each with its own cutoff and slots."""

    type: Literal["hybrid"] = "hybrid"
    """The descriptor: several others side by side."""
    list: Annotated[
        tuple[Annotated[OneCutoff, Tags(None, unsupported.DESCRIPTOR_TYPES, OTHER_NAMES, MEMBERS)], ...],
        Field(min_length=1),
    ]
    """The descriptors, in the order in which the fitting net sees them."""

    def parts(self) -> tuple[OneCutoff, ...]:
        return self.list

    def with_sel(self: Chosen, sel: Sequence[Sel]) -> Chosen:
        members = zip(self.parts(), sel, strict=True)
        return self.model_copy(update={"list": tuple(part.with_sel([own]) for part, own in members)})

    def misfits(self, type_map: Sequence[str]) -> Iterator[Finding]:
        """Yield what members have against the atom types, and one whose empty slots would depend on the others."""
        for number, part in enumerate(self.parts()):
            for each in part.misfits(type_map):
                yield replace(each, key=f"list.{number}.{each.key}")
            if isinstance(part, _Atten) and not (part.set_davg_zero or (part.stripped and part.smooth)):
                reason = "not supported yet: in a hybrid, a type embedding without set_davg_zero has to be smooth"
                yield Finding(f"list.{number}.set_davg_zero", reason, "set it to true")


DESCRIPTORS: dict[str, type[DescriptorConfig]] = {**MEMBERS, "hybrid": HybridConfig}
"""The sections that `type` chooses from."""


def _axis_findings(axis: int, neuron: Sequence[int]) -> Iterator[Finding]:
    if axis > neuron[-1]:
        yield Finding("axis_neuron", f"must not exceed the last width in neuron, {neuron[-1]}")
