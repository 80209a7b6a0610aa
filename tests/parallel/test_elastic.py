"""Nodes that come and leave while a training runs: it goes on with those that are there, and loses no micro-batch.

Two hosts made of network namespaces; with LOCKSTEP_FAULTS=all, as `make faults` sets it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import two_hosts
from copper import write_copper
from fault_rows import keep_row
from jobs import ALL, finish, run_in, start, torchrun

from lockstep.config import load_input
from lockstep.optim.schedule import make_schedule

WORKER = [sys.executable, str(Path(__file__).with_name("elastic_dp.py")), "train", "input.json", "-l", "train.log"]
STEPS = 300
SETTINGS = {"training__numb_steps": STEPS, "training__save_freq": 10, "training__disp_freq": 50}
# Nodes that come later find the others only so: see docs/parallel.md.
VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "LOCKSTEP_TIMEOUT": "20"}


def node(host: list[str], number: int, folder: Path) -> subprocess.Popen[str]:
    """torchrun on one of the hosts, for one node or two."""
    options = [
        "--nnodes=1:2",
        "--nproc_per_node=1",
        "--max-restarts=3",
        "--rdzv_backend=c10d",
        "--rdzv_id=elastic",
        "--rdzv_endpoint=10.77.0.1:12321",
        # The hosts have names that nobody knows.
        f"--rdzv_conf=last_call_timeout=2,is_host={number == 0}",
        f"--local_addr=10.77.0.{number + 1}",
    ]
    return start([*host, *torchrun(*options), *WORKER], folder, **VARIABLES, TRACE=str(folder / "trace"))


def kill_all_of(host: list[str]) -> None:
    """The host is gone, with torchrun and its workers."""
    running = subprocess.run(["ip", "netns", "pids", host[3]], check=True, capture_output=True, text=True).stdout
    for process in running.split():
        os.kill(int(process), signal.SIGKILL)


def lines(folder: Path) -> list[tuple[float, int, int, int, float, float]]:
    """All records, oldest processes first."""
    found = [line for path in (folder / "trace").iterdir() for line in path.read_text().splitlines()]
    return sorted(tuple(json.loads(line)) for line in found)  # type: ignore[arg-type]


def wait_for(job: subprocess.Popen[str], folder: Path, size: int, after: int) -> int:
    """Until steps beyond `after` and a few more have been done by so many ranks; returns the last one."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and job.poll() is None:
        done = [line[1] for line in lines(folder) if line[3] == size and line[1] > after]
        if len(set(done)) > 15:
            return max(done)
        time.sleep(0.3)
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    pytest.fail(f"no steps on {size} ranks after step {after}:\n{job.communicate()[0][-6000:]}")


def kept(folder: Path) -> Iterator[list[tuple[int, int, float, float]]]:
    """Of each step the ranks (rank, number of ranks, learning rate, micro-batch); of one done again, the last time."""
    steps: dict[int, dict[int, tuple[float, int, float, float]]] = {}
    for began, step, rank, size, lr, batch in lines(folder):
        steps.setdefault(step, {})[rank] = (began, size, lr, batch)
    assert sorted(steps) == list(range(STEPS))
    for step in range(STEPS):
        size = max(steps[step].values())[1]
        yield [(rank, *steps[step][rank][1:]) for rank in range(size)]


@pytest.mark.skipif(not ALL, reason="takes two minutes: LOCKSTEP_FAULTS=all")
@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_a_node_comes_and_leaves(tmp_path: Path) -> None:
    here = write_copper(tmp_path / "run", **SETTINGS).parent
    (here / "trace").mkdir()
    with two_hosts() as hosts:
        first = node(hosts[0], 0, here)
        step = wait_for(first, here, 1, 0)
        second = node(hosts[1], 1, here)
        step = wait_for(first, here, 2, step)
        left = time.time()
        kill_all_of(hosts[1])
        second.communicate()
        wait_for(first, here, 1, step + 1)
        seconds = min(line[0] for line in lines(here) if line[3] == 1 and line[0] > left) - left
        outcome = finish(first, here, 200)
    assert outcome.code == 0, outcome.text
    log = (here / "train.log").read_text()
    assert log.count("The launcher has started this run again: it goes on from model.ckpt-") == 2

    steps = list(kept(here))
    assert {ranks[0][1] for ranks in steps} == {1, 2}
    config = load_input(here / "input.json")
    for number, ranks in enumerate(steps):
        expected = make_schedule(config.learning_rate, STEPS, float(ranks[0][1]), 0).lr(number)
        assert [rank[2] for rank in ranks] == [expected] * len(ranks)

    # One worker that was never disturbed takes the same micro-batches, one by one.
    batches = [rank[3] for ranks in steps for rank in ranks]
    whole = write_copper(tmp_path / "whole", **{**SETTINGS, "training__numb_steps": len(batches)}).parent
    (whole / "trace").mkdir()
    assert run_in(whole, WORKER, TRACE=str(whole / "trace"), PAUSE="0").code == 0
    assert batches == [line[5] for line in lines(whole)]
    words = "The launcher has started this run again: it goes on from the checkpoint, on the ranks that are there"
    keep_row("torchrun --nnodes=1:2-node killed-step-rank1", seconds, outcome.code, words, "finished")
