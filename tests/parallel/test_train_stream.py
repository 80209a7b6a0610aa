"""One stream, dealt to the ranks: any number of them does the same steps on the same frames."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copper import curve, largest_difference, logged, train_on_threads, weights, write_copper

from lockstep.data import DpLoaderSet
from lockstep.observe.lcurve import LearningCurve
from lockstep.tasks.energy import spectral
from lockstep.training.loop import Trainer

STEPS, STOP = 50, 20
LAYOUTS = [(1, 4), (2, 2), (4, 1)]
Item = tuple[int, int, tuple[int, ...]]


@dataclass
class Record:
    """What a run did: the micro-batches of each step (number, system, frames), and its learning curve, unrounded."""

    steps: dict[int, list[Item]] = field(default_factory=lambda: defaultdict(list))
    curve: list[list[float]] = field(default_factory=list)

    def frames(self) -> dict[int, list[Item]]:
        return {step: sorted(items) for step, items in self.steps.items()}

    def in_order(self) -> list[Item]:
        return sorted(item for items in self.steps.values() for item in items)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    kept = Record()
    monkeypatch.setenv("NUM_WORKERS", "1")
    # What a thread takes from its loader belongs to the step that this thread is in.
    step_of: dict[int, int] = {}
    do_step, take, write = Trainer.step, DpLoaderSet.__next__, LearningCurve.write

    def step(self: Trainer, number: int) -> Any:
        step_of[threading.get_ident()] = number
        return do_step(self, number)

    def next_item(self: DpLoaderSet[Any]) -> Any:
        batch, prepared = take(self)
        kept.steps[step_of[threading.get_ident()]].append((batch.number, batch.system, tuple(batch.frames.tolist())))
        return batch, prepared

    def row(self: LearningCurve, step: int, lr: float, train: Any, valid: Any = None) -> None:
        kept.curve.append([step, lr, *train.values(), *valid.values()])
        write(self, step, lr, train, valid)

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(DpLoaderSet, "__next__", next_item)
    monkeypatch.setattr(LearningCurve, "write", row)
    return kept


def run(
    folder: Path,
    ranks: int,
    accumulate: int,
    monkeypatch: pytest.MonkeyPatch,
    record: Record,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """A run in `folder`; returns what it did, and clears `record` for the next."""
    file = write_copper(
        folder,
        learning_rate__scale_by_worker="none",
        training__acc_freq=accumulate,
        **{"training__numb_steps": STEPS, "training__disp_freq": 10, "training__save_freq": STOP, **changes},
    )
    monkeypatch.chdir(folder)
    train_on_threads(file, ranks, **(options or {}))
    done = Record(record.steps.copy(), record.curve.copy())
    record.steps.clear()
    record.curve.clear()
    return done


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_ranks_do_in_a_step_what_one_rank_does_that_accumulates(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    # The expansion, where it is used, begins so coarse and is looked at so often that it is refined in these steps.
    monkeypatch.setattr(spectral, "LADDER", (6, 8, 10, 12, 16, 20, 24, 32))
    monkeypatch.setattr(spectral, "CHECK_EVERY", 5)
    monkeypatch.setattr(spectral, "LOOKAHEAD", 10)
    changes = {"model__descriptor__spectral": setting, "learning_rate__start_lr": 0.02}
    with logged() as messages:
        done = {layout: run(tmp_path / str(layout), *layout, monkeypatch, record, **changes) for layout in LAYOUTS}
        assert bool(messages("spectral embedding: error")) == (setting == "auto")
    alone = done[1, 4]
    assert [len(items) for items in alone.frames().values()] == [4] * STEPS
    for layout in LAYOUTS[1:]:
        assert done[layout].frames() == alone.frames()
        np.testing.assert_allclose(done[layout].curve, alone.curve, rtol=1e-8)
        assert largest_difference(weights(tmp_path / str(layout)), weights(tmp_path / "(1, 4)")) < 1e-10


def test_a_run_stopped_on_four_ranks_goes_on_on_two_and_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    whole = run(tmp_path / "whole", 4, 1, monkeypatch, record)
    for ranks, accumulate in ((2, 2), (1, 4)):
        folder = tmp_path / f"{ranks}"
        folder.mkdir()
        shutil.copy(tmp_path / "whole" / f"model.ckpt-{STOP}.safetensors", folder)
        shutil.copy(tmp_path / "whole" / "lcurve.out", folder)
        restart = {"restart": f"model.ckpt-{STOP}"}
        rest = run(folder, ranks, accumulate, monkeypatch, record, restart)
        assert rest.frames() == {step: items for step, items in whole.frames().items() if step >= STOP}
        assert largest_difference(weights(folder), weights(tmp_path / "whole")) < 1e-10
        np.testing.assert_allclose(curve(folder), curve(tmp_path / "whole"), rtol=0.011)


def test_other_ranks_and_other_accumulation_take_the_frames_that_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """4 ranks, then 3 ranks, then 1 rank that accumulates two: one stream, no frame left out or doubled."""
    seen: list[Item] = []
    for ranks, accumulate, until in ((4, 1, 20), (3, 1, 40), (1, 2, 60)):
        options = {"restart": "model.ckpt"} if seen else {}
        part = run(tmp_path, ranks, accumulate, monkeypatch, record, options, training__numb_steps=until)
        seen += part.in_order()
    assert [number for number, _, _ in seen] == list(range(20 * (4 + 3 + 2)))
    for system in (0, 1):
        drawn = [frame for _, which, (frame,) in seen if which == system]
        assert len(drawn) > 60
        for start in range(0, len(drawn) - 59, 60):
            assert len(set(drawn[start : start + 60])) == 60, "a frame twice in a pass"
