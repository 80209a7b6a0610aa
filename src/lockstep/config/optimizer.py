"""The `optimizer` section."""

from __future__ import annotations

from typing import Literal

from lockstep.config.section import Count, Factor, FractionBelowOne, NonNegative, Positive, Section


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


class SoapConfig(Section):
    """SOAP: Adam in the eigenbasis of a weight matrix's own gradient covariances; AdamW for all that is no matrix."""

    type: Literal["SOAP"] = "SOAP"
    """The optimizer: SOAP."""
    beta1: FractionBelowOne = 0.95
    """Decay of the running mean of a matrix's gradients, in the eigenbasis."""
    beta2: FractionBelowOne = 0.95
    """Decay of the running mean of squared gradients, in the eigenbasis."""
    factor_decay: FractionBelowOne = 0.95
    """Decay of the running covariances of a matrix's rows and columns."""
    factor_frequency: Count = 2
    """Take the gradient into these covariances every this many steps."""
    frequency: Count = 10
    """Let the eigenbasis of a matrix follow its covariances every this many steps."""
    min_side: Count = 16
    """Matrices with fewer rows or columns than this are left to AdamW."""
    max_side: Count = 512
    """Rows or columns beyond this number get no eigenbasis; a matrix with both too long is left to AdamW."""
    max_block: Count = 128
    """More rows or columns than this are cut into blocks of one size, each with an eigenbasis of its own."""
    damping: NonNegative = 0.1
    """Hold directions back whose gradients are small next to this fraction of the matrix's root mean square."""
    epsilon: Positive = 1e-4
    """Directions whose gradients are smaller than this fraction of the matrix's root mean square have none."""
    rate_factor: Factor = 10.0
    """Steps of all weights, AdamW's too, are this many times as long as the learning rate says, so that rates made for
    Adam serve."""
    adam_beta1: FractionBelowOne = 0.9
    """Decay of the running mean of gradients, of what is left to AdamW."""
    adam_beta2: FractionBelowOne = 0.999
    """Decay of the running mean of squared gradients, of what is left to AdamW."""
    weight_decay: NonNegative = 0.0
    """Weight decay, applied to the weights apart from the gradient."""


OptimizerConfig = AdamConfig | AdamWConfig | SoapConfig
