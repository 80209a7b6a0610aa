"""DeePMD-kit's own optimizers behind this program's interface, and its Kalman filter as this program has it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.config.foreign import AdaMuonConfig, HybridMuonConfig, KalmanConfig
from lockstep.errors import CheckpointError, InputError
from lockstep.memory import free_memory
from lockstep.optim.kalman import KalmanFilter

log = logging.getLogger(__name__)

_NUMBER = "number"


class DeepmdOptimizer:
    """AdaMuon or HybridMuon; its state is kept as named tensors, numbers among them as tensors without axes."""

    def __init__(self, module: nn.Module, config: AdaMuonConfig) -> None:
        from deepmd.pt.optimizer import AdaMuonOptimizer, HybridMuonOptimizer

        self._names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        options: dict[str, Any] = {
            "lr": 0.0,
            "weight_decay": config.weight_decay,
            "adam_betas": (config.adam_beta1, config.adam_beta2),
            "momentum": config.momentum,
            "lr_adjust": config.lr_adjust,
            "lr_adjust_coeff": config.lr_adjust_coeff,
        }
        if isinstance(config, HybridMuonConfig):
            switches = {"enable_gram": config.enable_gram, "flash_muon": config.flash_muon}
            self._inner = HybridMuonOptimizer(
                list(self._names), **options, muon_mode=config.muon_mode, magma_muon=config.magma_muon, **switches
            )
            self._inner.set_param_names(tuple((name, p) for p, name in self._names.items()))
        else:
            self._inner = AdaMuonOptimizer(list(self._names), **options)

    def step(self, lr: float) -> None:
        """One update of all parameters that have a gradient."""
        for group in self._inner.param_groups:
            group["lr"] = lr
        self._inner.step()

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for parameter, name in self._names.items():
            for quantity, value in self._inner.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"{name}.{quantity}"] = value
                elif isinstance(value, float):
                    found[f"{name}.{quantity}:{_NUMBER}"] = torch.tensor(value, dtype=torch.float64)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = {name: parameter for parameter, name in self._names.items()}
        for key, tensor in tensors.items():
            name, _, quantity = key.rpartition(".")
            if name not in parameters:
                raise CheckpointError(f"has optimizer state of a parameter {name!r} that the model does not have")
            quantity, _, kind = quantity.partition(":")
            value = float(tensor) if kind == _NUMBER else tensor.detach().to(parameters[name].device, copy=True)
            self._inner.state[parameters[name]][quantity] = value


def make_filter(module: nn.Module, config: KalmanConfig, local_ranks: int) -> KalmanFilter:
    """The Kalman filter over all trainable weights; refused where so many ranks of a node have no memory for it."""
    parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
    needed, free = KalmanFilter.bytes_needed(parameters, config.kf_blocksize), free_memory(local_ranks)
    log.info("optimizer: Kalman filter with %.3g GB of covariances on every rank", needed / 1e9)
    log.info("optimizer: the learning rate weighs the displayed loss alone, the filter has none")
    if needed > free:
        raise InputError(
            f"the covariances take {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free",
            where=f"optimizer.kf_blocksize = {config.kf_blocksize}",
            remedy="make it smaller: the memory shrinks with it",
        )
    return KalmanFilter(parameters, config.kf_blocksize)
