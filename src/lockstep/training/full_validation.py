"""Errors on all validation data now and then, and the best weights by them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.checkpoint.best import BestStore
from lockstep.config.validating import QUANTITIES, ValidatingConfig
from lockstep.errors import InputError
from lockstep.observe.lcurve import LearningCurve, NullCurve
from lockstep.training.options import checkpoint_prefix

if TYPE_CHECKING:
    from lockstep.checkpoint.format import Checkpoint
    from lockstep.data import MicroBatch, Plan
    from lockstep.parallel.group import Group
    from lockstep.parallel.mesh import Mesh
    from lockstep.tasks import Task

log = logging.getLogger(__name__)

LETTERS = {"energy": "e", "force": "f", "force_mag": "fm", "virial": "v"}
RANKING = "best"
"""Under this key a checkpoint has the errors of the best steps so far."""

State = Callable[[int, None], tuple[dict[str, Tensor], dict[str, Any]]]


class AtIntervals(Protocol):
    """Something that is done after steps at which it is due."""

    def due(self, step: int) -> bool: ...

    def __call__(self, step: int, lr: float) -> None: ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""

    def close(self) -> None:
        """Close files."""


class NoFullValidation:
    """For runs that do not ask for it."""

    def due(self, step: int) -> bool:
        return False

    def __call__(self, step: int, lr: float) -> None:
        """Do nothing."""

    def state(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing."""


class FullValidation:
    """Looks at every frame of the validation data, each rank at its share.

    Args:
        first_step: when it begins.
        file: where the errors are written.
        store: the best checkpoints; on ranks that do not write, without a folder.
        state: what a checkpoint holds. All ranks call it.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        group: Group,
        config: ValidatingConfig,
        first_step: int,
        file: LearningCurve | NullCurve,
        store: BestStore,
        state: State,
    ) -> None:
        self._task, self._plan, self._group = task, plan, group
        self._config, self._first_step = config, first_step
        self._file, self._store, self._state = file, store, state

    def due(self, step: int) -> bool:
        return step >= self._first_step and step % self._config.validation_freq == 0

    def __call__(self, step: int, lr: float) -> None:
        """Validate, and keep the weights if they are among the best."""
        errors = self.errors()
        self._file.write(step, lr, errors)
        metric = self._config.validation_metric
        error = errors[column_of(metric)]
        best = self._store.is_among_best(error)
        log.info("Batch %7d: all validation data: %s = %.3e%s", step, metric, error, ", the best so far" * best)
        if best and self._config.save_best:
            driven_out = self._store.enter(error, step)
            self._store.save(step, *self._state(step, None), driven_out)

    def state(self) -> dict[str, Any]:
        return {RANKING: [list(entry) for entry in self._store.ranking]}

    def close(self) -> None:
        self._file.close()

    def errors(self) -> dict[str, float]:
        """Mean absolute and root mean square errors over all frames of all ranks."""
        sums = torch.zeros(len(LETTERS), 3, dtype=torch.float64)
        for batch in self._share():
            found = self._task.differences(self._task.prepare_validation(batch))
            for row, name in enumerate(LETTERS):
                if name in found:
                    sums[row] += _sums(found[name]).cpu()
        return dict(_shown(self._group.sum(sums.to(self._device()).reshape(-1)).reshape(sums.shape).tolist()))

    def _share(self) -> Iterator[MicroBatch]:
        data, number = self._plan.dataset, 0
        for system in range(len(data)):
            size = int(self._plan.batch_sizes[system])
            for start in range(0, int(data.n_frames[system]), size):
                if number % self._group.size == self._group.rank:
                    yield data.read(system, np.arange(start, min(start + size, int(data.n_frames[system]))))
                number += 1

    def _device(self) -> torch.device:
        return next(self._task.module.parameters()).device


def _sums(difference: Tensor) -> Tensor:
    return torch.stack([difference.abs().sum(), difference.square().sum(), difference.new_tensor(difference.numel())])


def _shown(sums: list[list[float]]) -> Iterator[tuple[str, float]]:
    for letter, (absolute, square, count) in zip(LETTERS.values(), sums, strict=True):
        yield f"mae_{letter}", absolute / count if count else float("nan")
        yield f"rmse_{letter}", (square / count) ** 0.5 if count else float("nan")


def column_of(metric: str) -> str:
    """The column of a metric of the input file: F:RMSE is rmse_f."""
    quantity, _, kind = metric.partition(":")
    return f"{kind.lower()}_{LETTERS[QUANTITIES[quantity]]}"


def headings() -> Mapping[str, tuple[str, str]]:
    """The columns of the file, which has errors of validation data alone."""
    names = [f"{kind}_{letter}" for letter in LETTERS.values() for kind in ("mae", "rmse")]
    return {name: (name, name) for name in names}


def check_metric(plan: Plan | None, config: ValidatingConfig) -> None:
    """Stop where the validation data have nothing to measure the metric by."""
    if plan is None or not config.full_validation:
        return
    label = QUANTITIES[config.validation_metric.partition(":")[0]]
    if not plan.dataset.has(label).any():
        raise InputError(
            f"the validation data have no {label}",
            where="validating.validation_metric",
            value=config.validation_metric,
            remedy="choose a quantity that they have, such as F:RMSE",
        )


def build_full_validation(
    task: Task, plan: Plan | None, numb_steps: int, checkpoint: Checkpoint | None, mesh: Mesh, state: State
) -> AtIntervals:
    """Validation on all data, where the input asks for it; files are real on rank 0 alone."""
    config = task.config.validating
    first_step = config.first_step(numb_steps)
    if plan is None or first_step is None:
        return NoFullValidation()
    writes = mesh.world.rank == 0
    restart_step = None if checkpoint is None else checkpoint.step
    file = LearningCurve(config.full_val_file, headings(), False, restart_step) if writes else NullCurve()
    folder = Path(config.save_best_dir) if config.save_best_dir else checkpoint_prefix(task.config).parent
    ranking = (checkpoint.info if checkpoint else {}).get(RANKING, [])
    store = BestStore(folder if writes else None, config.max_best_ckpt, ranking)
    return FullValidation(task, plan, mesh.data, config, first_step, file, store, state)
