"""Descriptors: from environment features to what the fitting net sees. One file each, chosen from one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from lockstep.config.descriptors import DescriptorConfig
from lockstep.network.descriptors.base import Descriptor, Embedding
from lockstep.network.descriptors.hybrid import Hybrid
from lockstep.network.descriptors.se_atten import SeAtten
from lockstep.network.descriptors.se_e2_a import SeE2A
from lockstep.network.descriptors.se_e2_r import SeE2R

__all__ = ["DESCRIPTORS", "Descriptor", "Embedding", "make_descriptor"]

Maker = Callable[..., Descriptor]


def make_descriptor(config: DescriptorConfig, type_map: Sequence[str], generator: torch.Generator) -> Descriptor:
    return DESCRIPTORS[config.type](config, type_map, generator)


DESCRIPTORS: dict[str, Maker] = {
    "se_e2_a": SeE2A,
    "se_e2_r": SeE2R,
    "se_atten": SeAtten,
    "se_atten_v2": SeAtten,
    "hybrid": partial(Hybrid, make=make_descriptor),
}
"""What makes the descriptor of a type from its configuration, the names of the atom types, and a generator for its
first weights."""
