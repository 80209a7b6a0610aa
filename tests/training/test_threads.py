"""How many threads a run takes by itself: tried before it begins, without a trace, and kept over restarts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.training import threads
from runs import dp, tiny_input, tiny_system, write_input

SOLO = SoloGroup(WorkerContext("alone", 0, 1, 0, 1))


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.9}, 4),
        ({1: 1.0, 2: 0.97}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.59}, 2),
        ({1: 1.0, 2: 1.5, 4: 0.9}, 4),
    ],
)
def test_fewer_are_taken_where_more_bring_little(times: dict[int, float], best: int) -> None:
    assert threads.choose(times) == best


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_number_is_timed_by_itself(one_thread: object) -> None:
    def run() -> None:
        time.sleep(0.02 if torch.get_num_threads() == 2 else 0.001)

    times = threads.measure(run, [1, 2], SOLO)
    assert times[1] < 0.01 < times[2]


def test_a_long_pass_is_not_repeated(one_thread: object, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(threads, "TOO_LONG", 0.0)
    assert threads.measure(lambda: passes.append(1), [1, 2], SOLO) == {}
    assert len(passes) == 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, on two cores, with no word about threads."""
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS", "TF_INTRA_OP_PARALLELISM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    tiny_system(tmp_path / "train", n_frames=6)
    write_input(tmp_path, tiny_input(training__numb_steps=8, training__save_freq=4))
    return tmp_path


def trained(*options: str) -> tuple[dict[str, torch.Tensor], str]:
    Path("train.log").unlink(missing_ok=True)
    assert dp("train", "input.json", "-l", "train.log", *options) == 0
    return dict(load_checkpoint("model.ckpt-8").tensors), Path("train.log").read_text()


@pytest.mark.parametrize("best", [1, 2])
def test_the_trial_leaves_no_trace(best: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "choose", lambda times: best)
    tried, log = trained()
    assert f"threads: {best} of 2 cores (1: " in log
    assert load_checkpoint("model.ckpt-8").info["threads"] == best
    monkeypatch.setenv("OMP_NUM_THREADS", str(best))
    told, log = trained()
    assert "threads: " not in log.replace("intra_threads", "").replace("inter_threads", "")
    assert tried.keys() == told.keys()
    assert all(torch.equal(tried[name], told[name]) for name in tried)


def test_a_restart_takes_what_the_checkpoint_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "choose", lambda times: 2)
    whole, _ = trained()
    monkeypatch.setattr(threads, "choose", lambda times: 1)
    again, log = trained("--restart", "model.ckpt-4")
    assert "threads: 2, as the checkpoint has it" in log
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_another_number_than_the_checkpoints_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "choose", lambda times: 2)
    trained()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, log = trained("--restart", "model.ckpt-4")
    assert "threads: 1, and 2 in the run before" in log


def test_one_core_has_no_choice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    _, log = trained()
    assert "cores (" not in log
