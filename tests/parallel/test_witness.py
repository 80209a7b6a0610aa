"""The witness of a rank, without a launcher."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

WITNESS = """
import os, signal, sys, time
from lockstep.parallel.watch import witness
forked = os.fork
os.fork = lambda: pids.append(forked()) or pids[-1]
pids = []
witness.call("rank 1", {seconds}, "did not meet the others")
os.fork = forked
{act}
"""
DIES = "os.kill(os.getpid(), signal.SIGKILL)"


def run(act: str, seconds: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    script = WITNESS.format(act=act, seconds=seconds)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, **options)


def test_a_rank_whose_witness_was_killed_ends_as_usual() -> None:
    done = run("os.kill(pids[0], signal.SIGKILL); os.waitpid(pids[0], 0); witness.dismiss()")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_witness_of_a_killed_rank_names_it() -> None:
    assert run(DIES).stderr == "DEEPMD ERROR   rank 1 was killed in step 0 (start)\n"


LAUNCHER = """
import os, signal, subprocess, sys, time
ranks = [
    subprocess.Popen([sys.executable, "-c", {rank!r}, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    start_new_session=True)
    for n in range(3)
]
for rank in ranks:
    rank.stdin.write(b"all are there"); rank.stdin.close()
for rank in ranks:
    rank.stdout.read(1)
os.kill(ranks[1].pid, signal.SIGKILL)
ranks[1].wait()
for rank in (ranks[0], ranks[2]):
    os.killpg(rank.pid, signal.SIGKILL)
"""
RANK = """
import sys, time
from lockstep.parallel.watch import witness
sys.stdin.read()
witness.call("rank " + sys.argv[1], 60, "")
time.sleep(0.5)
print("x", flush=True)
time.sleep(60)
"""


def test_witnesses_of_ranks_that_the_launcher_then_ended_are_silent() -> None:
    """As mpirun ends the other ranks within a millisecond when one has died."""
    script = LAUNCHER.format(rank=RANK)
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr == "DEEPMD ERROR   rank 1 was killed in step 0 (start)\n"


def test_an_orderly_end_is_no_news() -> None:
    assert run("witness.waits(); witness.has_met(); time.sleep(2.5); witness.dismiss()", 2.0).stderr == ""


# Holds the interpreter's lock, as MPI_Init does: neither a thread nor the handler of a signal could run.
HOLDS_THE_LOCK = "import ctypes; ctypes.PyDLL(None).sleep(60)"


def test_a_rank_that_looks_for_the_others_for_too_long_is_ended_whatever_it_holds() -> None:
    done = run(f"witness.waits(); {HOLDS_THE_LOCK}", 0.5)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "DEEPMD ERROR   did not meet the others\n"


def test_time_before_the_rank_looks_for_the_others_does_not_count() -> None:
    assert run("time.sleep(2.5); witness.waits(); witness.has_met(); witness.dismiss()", 2.0).stderr == ""


def test_descriptors_that_the_user_has_closed_do_no_harm() -> None:
    script = WITNESS.format(act="witness.waits(); witness.has_met(); print('well'); witness.dismiss()", seconds=0.5)
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', sys.executable, script]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "well\n")
