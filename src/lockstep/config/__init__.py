"""The input file: typed, documented, validated. Every default of an option lives here and nowhere else."""

from lockstep.config.cutoff import Cutoff
from lockstep.config.descriptors import (
    DescriptorConfig,
    HybridConfig,
    SeAttenConfig,
    SeAttenV2Config,
    SeE2AConfig,
    SeE2RConfig,
)
from lockstep.config.foreign import ForeignInput, load_any_input, parse_any_input
from lockstep.config.input import AnyInput, Input, RawInput, load_input, parse_input, parse_raw_input
from lockstep.config.learning_rate import (
    BaseLearningRate,
    CosineLearningRate,
    ExpLearningRate,
    LearningRateConfig,
    WsdLearningRate,
)
from lockstep.config.loss import EnergyLossConfig, LossConfig
from lockstep.config.model import EnergyFittingConfig, ModelConfig
from lockstep.config.optimizer import AdamConfig, AdamWConfig, OptimizerConfig, SoapConfig
from lockstep.config.training import DataConfig, TrainingConfig, TrainingDataConfig, ValidationDataConfig

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "AnyInput",
    "BaseLearningRate",
    "CosineLearningRate",
    "Cutoff",
    "DataConfig",
    "DescriptorConfig",
    "EnergyFittingConfig",
    "EnergyLossConfig",
    "ExpLearningRate",
    "ForeignInput",
    "HybridConfig",
    "Input",
    "LearningRateConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RawInput",
    "SeAttenConfig",
    "SeAttenV2Config",
    "SeE2AConfig",
    "SeE2RConfig",
    "SoapConfig",
    "TrainingConfig",
    "TrainingDataConfig",
    "ValidationDataConfig",
    "WsdLearningRate",
    "load_any_input",
    "load_input",
    "parse_any_input",
    "parse_input",
    "parse_raw_input",
]
