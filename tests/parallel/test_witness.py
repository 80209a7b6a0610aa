"""The witness of a rank, without a launcher."""

from __future__ import annotations

import subprocess
import sys

KILLED = """
import os, signal
from lockstep.parallel.watch import witness
forked = os.fork
os.fork = lambda: pids.append(forked()) or pids[-1]
pids = []
witness.call("rank 1")
if {witness}:
    os.kill(pids[0], signal.SIGKILL)
    os.waitpid(pids[0], 0)
    witness.dismiss()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run(witness: bool) -> subprocess.CompletedProcess[str]:
    script = KILLED.format(witness=witness)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_a_rank_whose_witness_was_killed_ends_as_usual() -> None:
    done = run(witness=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_witness_of_a_killed_rank_names_it() -> None:
    assert "rank 1 was killed in step 0 (start)" in run(witness=False).stderr
