"""Sums through shared memory: the same as any others, on real processes, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jobs
import pytest

PROGRAM = """
import os, sys, time
import torch
from pathlib import Path
from lockstep.parallel import launchers
from lockstep.parallel.engines import shared_sum
from lockstep.parallel.engines import torch as engine
from lockstep.parallel.opening import open_group

# A folder of the test's own, because others use the real one meanwhile.
shared_sum.FOLDER = Path.cwd()
if "barriers" in sys.argv[1]:
    shared_sum.Turnstile.usable = False
if sys.argv[1] == "one cannot" and os.environ["RANK"] == "1":
    shared_sum._opened = lambda path, nbytes: None
if sys.argv[1] == "too little":
    def full(*arguments): raise OSError(28, "No space left on device")
    os.posix_fallocate = full
if "nodes" in sys.argv[1]:
    # Ranks 0 and 1 on one node and rank 2 on another; or each on its own.
    node = int(os.environ["RANK"]) // (2 if "two" in sys.argv[1] else 1)
    engine.this_node = lambda: f"node {node}"
if sys.argv[1] == "two nodes, one full" and node == 1:
    shared_sum._create = lambda path, nbytes: False
group = open_group(launchers.detect(os.environ))
for dtype in (torch.float64, torch.float32):
    for number in (1, 7, 20_001, 100_000):
        for turn in range(8):
            # Now one comes first, now another, and some have to wait for longer than they look without a pause.
            time.sleep(0.002 * ((turn + group.rank) % 3))
            tensors = [
                torch.randn(number, dtype=dtype, generator=torch.Generator().manual_seed(100 * turn + rank))
                for rank in range(group.size)
            ]
            mine = tensors[group.rank].clone()
            group.all_reduce(mine)
            torch.testing.assert_close(mine, sum(tensors))
            group.barrier()
            everywhere = group.all_gather_object(mine.numpy().tobytes())
            assert all(other == everywhere[0] for other in everywhere)
used = sum(shared is not None for shared in group._shared.values())
# Of each precision two that are large, and room for the small ones where it is of use.
tried = {"three nodes": 0, "two nodes": 4, "two nodes, one full": 4, "with barriers": 4}.get(sys.argv[1], 6)
assert len(group._shared) == tried, group._shared
group.barrier()
left = [name for name in os.listdir(".") if name.startswith("lockstep-")]
os.write(1, f"rank {group.rank} used {used} left {left}\\n".encode())
group.close()
"""


@pytest.mark.parallel
@pytest.mark.parametrize(
    ("situation", "used"),
    [
        ("with", 6),
        ("with barriers", 4),
        ("one cannot", 0),
        ("too little", 0),
        ("two nodes", 4),
        ("two nodes, one full", 0),
        ("three nodes", 0),
    ],
)
def test_sums_are_right_and_the_same_on_all_ranks(situation: str, used: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]
    command = [*torchrun, str(program), situation]
    environ = jobs.environment()
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} used {used} left []" for rank in range(3)]
