"""Memory of a rank does not grow with the number of ranks: a run on 1, 2 and 4 of them. Part of `make faults`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from copper import write_copper
from jobs import ALL, dp, finish, mpirun, start

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300)]


def peaks(folder: Path, ranks: int) -> list[float]:
    """Peak resident memory of each rank of a short training, in MB."""
    here = write_copper(folder, training__numb_steps=300, training__disp_freq=100, training__save_freq=100).parent
    job = start([*mpirun("-np", str(ranks)), *dp("train", "input.json")], here)
    found: dict[str, float] = {}
    while job.poll() is None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cwd").resolve() == here and (entry / "cmdline").read_bytes().split(b"\0")[1][
                    -3:
                ] == b"/dp":
                    status = (entry / "status").read_text()
                    found[entry.name] = int(status.partition("VmHWM:")[2].split()[0]) / 1024
            except (OSError, IndexError):
                continue
        time.sleep(0.1)
    assert finish(job, here).code == 0
    # Each rank has a fork that only waits for its end: the small ones.
    return sorted(found.values())[-ranks:]


@pytest.mark.skipif(not ALL, reason="takes half a minute: see make faults")
def test_memory_of_a_rank_does_not_grow_with_their_number(tmp_path: Path) -> None:
    largest = {ranks: max(peaks(tmp_path / str(ranks), ranks)) for ranks in (1, 2, 4)}
    print("peak memory of the largest rank in MB:", largest)
    assert largest[4] < 1.1 * largest[2]
    assert largest[4] < 1.2 * largest[1], "MPI itself may take some"
