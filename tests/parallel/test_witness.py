"""A rank's witness speaks when the rank was killed, and only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from lockstep.parallel import witness
notes = witness.call("rank 3 (here, process 1)")
witness.note(notes, 12, "saving")
{end}
"""
KILLED = "DEEPMD ERROR   rank 3 (here, process 1) was killed in step 12 (saving)\n"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", KILLED),
        ("os.abort()", KILLED),
        ("witness.dismiss()", ""),
    ],
)
def test_what_the_witness_says(end: str, said: str) -> None:
    # The pipe of stderr closes only when the witness has ended, so that it cannot have been left behind.
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=20, check=False
    )
    assert answer.stderr == said
