"""Scalars for TensorBoard."""

from __future__ import annotations

from typing import Any

from lockstep.errors import UserError
from lockstep.training.loss import Metrics


class TensorBoard:
    """Writes errors and learning rate every `frequency` steps; the library buffers them and writes from a thread."""

    def __init__(self, folder: str, frequency: int, purge_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"TensorBoard cannot be loaded: {error}",
                where="training.tensorboard",
                value=True,
                remedy="pip install 'lockstep-dp[tensorboard]', or set training.tensorboard to false",
            ) from error
        self._writer: Any = SummaryWriter(folder, purge_step=purge_step)
        self._frequency = frequency

    def write(self, step: int, lr: float, metrics: Metrics) -> None:
        if step % self._frequency and step != 1:
            return
        for name, value in metrics.rmse().items():
            self._writer.add_scalar(f"train/{name}", value, step)
        self._writer.add_scalar("train/lr", lr, step)

    def close(self) -> None:
        self._writer.close()


class NullScalars:
    """For runs, and ranks, without TensorBoard."""

    def write(self, step: int, lr: float, metrics: Metrics) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
