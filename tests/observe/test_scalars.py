from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from lockstep.tasks import Column, Metrics
from lockstep.training.scalars import TensorBoard

pytest.importorskip("tensorboard")


def metrics(value: float) -> Metrics:
    return Metrics((Column("rmse"), Column("rmse_e")), torch.tensor([value, value, 1.0, 1.0], dtype=torch.float64))


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_scalars_arrive(tmp_path: Path) -> None:
    board = TensorBoard(str(tmp_path), frequency=2)
    for step in range(1, 6):
        board.write(step, 0.5, metrics(4.0 * step))
    board.add(4, {"budget/busy": 0.75})
    board.close()
    found = events(tmp_path)
    assert [step for step, _ in found["train/rmse"]] == [1, 2, 4]
    assert found["train/rmse"][-1][1] == pytest.approx(4.0)
    assert found["train/lr"][0] == (1, 0.5)
    assert found["budget/busy"] == [(4, 0.75)]


def test_the_training_only_enqueues_however_slow_the_disk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = TensorBoard(str(tmp_path), frequency=1)
    gate = threading.Event()
    threads: set[str] = set()
    real = board._writer.file_writer.add_summary

    def slow(summary: object, step: int) -> None:
        threads.add(threading.current_thread().name)
        gate.wait()
        real(summary, step)

    monkeypatch.setattr(board._writer.file_writer, "add_summary", slow)
    values, count = metrics(1.0), 1000
    for step in range(1, count + 1):
        board.write(step, 0.1, values)
    # Not one of them has been written yet.
    gate.set()
    board.close()
    assert threads == {"lockstep tensorboard"}
    assert len(events(tmp_path)["train/rmse"]) == count


def test_a_full_disk_ends_the_scalars_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = TensorBoard(str(tmp_path), frequency=1)

    def fail(summary: object, step: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board._writer.file_writer, "add_summary", fail)
    for step in (1, 2):
        board.write(step, 0.1, metrics(1.0))
    board.close()
    assert "No space left" in caplog.text
