"""Two runs never write to the same files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from lockstep.errors import UserError
from lockstep.training.lock import RunLock

HOLD = """
import sys
from lockstep.training.lock import RunLock
with RunLock(sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(*outputs):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, *map(str, outputs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    return holder


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "model.ckpt", tmp_path / "lcurve.out"


def test_a_second_run_is_told_who_the_first_is(outputs):
    holder = start_holder(*outputs)
    try:
        with pytest.raises(UserError) as caught, RunLock(outputs):
            pass
    finally:
        holder.communicate()

    assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)
    assert "remedy" in str(caught.value)


def test_the_lock_of_a_killed_run_is_gone(outputs):
    holder = start_holder(*outputs)
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()

    with RunLock(outputs):
        pass


def test_nothing_is_left_when_the_run_ends(outputs, tmp_path):
    with RunLock(outputs):
        assert len(list(tmp_path.iterdir())) == 2

    assert list(tmp_path.iterdir()) == []


def test_one_shared_output_is_enough_to_be_refused(outputs, tmp_path):
    with (
        RunLock(outputs),
        pytest.raises(UserError, match=r"lcurve\.out: another run"),
        RunLock([tmp_path / "other.ckpt", outputs[1]]),
    ):
        pass


def test_a_refused_run_holds_nothing(outputs, tmp_path):
    with RunLock(outputs[1:]):
        with pytest.raises(UserError), RunLock(outputs):
            pass
        with RunLock(outputs[:1]):
            pass


def test_runs_with_other_outputs_share_a_folder(outputs, tmp_path):
    with RunLock(outputs), RunLock([tmp_path / "other.ckpt", tmp_path / "other.out"]):
        pass


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match="cannot be written to"), RunLock([tmp_path / "file" / "model.ckpt"]):
        pass


def test_the_lock_can_be_taken_again_and_again(outputs):
    for _ in range(3):
        with ExitStack() as stack:
            stack.enter_context(RunLock(outputs))
