"""The `optimizer` section."""

from __future__ import annotations

from typing import Literal

from lockstep.config.section import FractionBelowOne, NonNegative, Section


class AdamConfig(Section):
    """Adam."""

    type: Literal["Adam"] = "Adam"
    """The optimizer: Adam."""
    adam_beta1: FractionBelowOne = 0.9
    """Decay of the running mean of gradients."""
    adam_beta2: FractionBelowOne = 0.999
    """Decay of the running mean of squared gradients."""
    weight_decay: NonNegative = 0.0
    """Weight decay, added to the gradient as an L2 penalty."""


class AdamWConfig(Section):
    """Adam with decoupled weight decay."""

    type: Literal["AdamW"] = "AdamW"
    """The optimizer: AdamW."""
    adam_beta1: FractionBelowOne = 0.9
    """Decay of the running mean of gradients."""
    adam_beta2: FractionBelowOne = 0.999
    """Decay of the running mean of squared gradients."""
    weight_decay: NonNegative = 0.001
    """Weight decay, applied to the weights apart from the gradient."""


OptimizerConfig = AdamConfig | AdamWConfig
