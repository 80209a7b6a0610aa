"""A task of a few lines, as a user may write one: frame energies, linear in how many atoms of each type there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lockstep
from lockstep.config import AnyInput
from lockstep.data import Array, MicroBatch
from lockstep.tasks import Column, Job, LossTerms, Metrics, Task


class Linear(Task):
    """Columns and loss of its own: the mean absolute error of energies."""

    title = "a linear model"
    columns = (Column("loss", "mean"), Column("mae_energy", "mean"))

    def __init__(self, config: AnyInput, updates: int) -> None:
        self.config, self.updates = config, updates
        torch.manual_seed(0)
        self.module = torch.nn.Linear(len(config.type_map), 1, dtype=torch.float64)

    @classmethod
    def arrays(cls, config: AnyInput) -> tuple[Array, ...]:
        return (Array("energy", required=True),)

    @classmethod
    def build(cls, job: Job) -> Linear:
        return cls(job.config, job.saved("updates") or 0)

    def prepare(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        counts = (batch.types[:, :, None] == np.arange(len(self.config.type_map))).sum(axis=1)
        return torch.from_numpy(counts.astype(float)), torch.from_numpy(batch.labels["energy"])

    def loss(self, sample: tuple[torch.Tensor, torch.Tensor], lr: float) -> LossTerms:
        counts, energy = sample
        error = (self.module(counts).squeeze(1) - energy).abs()
        one = torch.ones((), dtype=torch.float64)
        values = torch.stack([error.mean(), error.sum(), one, one * len(error)])
        return LossTerms(error.mean(), Metrics(self.columns, values.detach()))

    def after_update(self, step: int) -> None:
        self.updates += 1

    def state(self) -> dict[str, Any]:
        return {"updates": self.updates}


if __name__ == "__main__":
    changes: dict[str, Any] = json.loads(sys.argv[1])
    source = json.loads(Path("input.json").read_text())
    source["training"] |= changes.pop("training", {})
    lockstep.train(source, task=Linear, **changes)
