"""A job that is killed at random moments and submitted again by the same command ends as if never disturbed.

Five kills by default; fifty with LOCKSTEP_FAULTS=all, as `make faults` sets it.
"""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
import torch
from jobs import ALL

from lockstep.checkpoint.find import load_checkpoint
from runs import SLOW_STEPS, dp, dp_process, tiny_input, tiny_system, write_input

COMMAND = ("train", "input.json", "--restart", "auto", "-l", "train.log")
KILLS = 50 if ALL else 5


def wait_for(process: subprocess.Popen[str], log: Path, words: str) -> None:
    """Return when the log has these words once more, or the process has ended."""
    seen = log.read_text().count(words) if log.exists() else 0
    while words and process.poll() is None and not (log.exists() and log.read_text().count(words) > seen):
        time.sleep(0.02)


@pytest.mark.timeout(900)
def test_a_job_that_is_killed_and_resubmitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "killed"):
        tiny_system(tmp_path / name / "train", n_frames=6)
        settings = {"training__numb_steps": 50 + 20 * KILLS, "training__save_freq": 7, "training__disp_freq": 5}
        write_input(tmp_path / name, tiny_input(**settings))
    log = tmp_path / "killed" / "train.log"
    monkeypatch.chdir(tmp_path / "whole")
    assert dp(*COMMAND) == 0

    dice = random.Random(KILLS)
    for _ in range(KILLS):
        process = dp_process(*COMMAND, prelude=SLOW_STEPS, cwd=tmp_path / "killed")
        # While it starts, soon after its first step, or after a checkpoint: later and later, or it would never end.
        wait_for(process, log, dice.choice(["", "Start to train", "Saved model", "Saved model"]))
        time.sleep(0.5 * dice.random())
        process.kill()
        process.communicate(timeout=60)

    monkeypatch.chdir(tmp_path / "killed")
    assert dp(*COMMAND) == 0
    assert (tmp_path / "killed" / "lcurve.out").read_bytes() == (tmp_path / "whole" / "lcurve.out").read_bytes()
    one, other = (load_checkpoint(tmp_path / name).tensors for name in ("killed", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert log.read_text().count("Loaded model.ckpt-") > KILLS // 3, "hardly any submission had something to go on from"
    assert not [path.name for path in (tmp_path / "killed").glob(".*.tmp")]
