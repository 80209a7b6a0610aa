"""DeePMD-kit's own optimizers behind this program's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.config.foreign import AdaMuonConfig, HybridMuonConfig
from lockstep.errors import CheckpointError

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
