"""Limits of memory, from made-up control groups, Slurm's variables, and a real limit of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.memory import Machine, free_memory

MB, GB = 1 << 20, 1 << 30
NODE = free_memory(machine=Machine(Path("/nowhere"), Path("/nowhere"), {}))


def machine(root: Path, membership: str, files: dict[str, str], **environ: str) -> Machine:
    for name, content in files.items():
        (root / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "cgroup" / name).write_text(content + "\n")
    (root / "membership").write_text(membership)
    return Machine(root / "cgroup", root / "membership", environ)


V2 = "0::/slurm/job_7/step_0\n"
V1 = "12:cpu,cpuacct:/a\n5:memory:/slurm/job_7/step_0\n1:name=systemd:/b\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(V2, {"slurm/job_7/step_0/memory.max": str(60 * MB)}, 60 * MB, id="v2 own"),
        pytest.param(
            V2,
            {"slurm/job_7/step_0/memory.max": "max", "slurm/job_7/memory.max": str(50 * MB)},
            50 * MB,
            id="v2 parent",
        ),
        pytest.param(
            V2,
            {
                "slurm/job_7/memory.max": str(50 * MB),
                "slurm/job_7/memory.current": str(30 * MB),
                "slurm/job_7/memory.stat": f"anon 1\ninactive_file {10 * MB}",
            },
            30 * MB,
            id="v2 used, page cache apart",
        ),
        pytest.param("0::/\n", {"memory.max": str(40 * MB)}, 40 * MB, id="v2 in a container"),
        pytest.param("0::/../other\n", {"memory.max": str(40 * MB)}, 40 * MB, id="v2 outside of the container"),
        pytest.param(
            V1,
            {
                "memory/slurm/job_7/memory.limit_in_bytes": str(70 * MB),
                "memory/slurm/job_7/memory.usage_in_bytes": str(30 * MB),
                "memory/slurm/job_7/memory.stat": f"total_inactive_file {5 * MB}",
                "memory/slurm/job_7/step_0/memory.limit_in_bytes": str((1 << 63) - 4096),
            },
            45 * MB,
            id="v1 parent",
        ),
        pytest.param(
            V1 + V2,
            {
                "memory/slurm/memory.limit_in_bytes": str(70 * MB),
                "unified/slurm/memory.max": str(65 * MB),
            },
            65 * MB,
            id="both versions",
        ),
        pytest.param(
            V2,
            {"slurm/memory.max": str(10 * MB), "slurm/memory.current": str(90 * MB)},
            0,
            id="nothing left",
        ),
    ],
)
def test_control_groups_limit(tmp_path: Path, membership: str, files: dict[str, str], expected: int) -> None:
    assert free_memory(machine=machine(tmp_path, membership, files)) == expected
    assert free_memory(2, machine(tmp_path, membership, files)) == expected // 2


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "80"}, 80 * MB),
        ({"SLURM_MEM_PER_NODE": "81920K"}, 80 * MB),
        ({"SLURM_MEM_PER_CPU": "20", "SLURM_CPUS_ON_NODE": "4"}, 80 * MB),
        ({"SLURM_MEM_PER_CPU": "20", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "70M"}, 70 * MB),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_NODE": "much"}, None),
        ({"SLURM_MEM_PER_CPU": "20"}, None),
        ({}, None),
    ],
)
def test_slurm_limits(tmp_path: Path, environ: dict[str, str], expected: int | None) -> None:
    found = free_memory(machine=machine(tmp_path, "", {}, **environ))
    assert found == pytest.approx(NODE, rel=0.5) if expected is None else found == expected


def test_a_real_limit_of_the_process_counts_whole_for_every_rank() -> None:
    program = "from lockstep.memory import free_memory; print(free_memory(), free_memory(1000))"
    limited = ["bash", "-c", f'ulimit -v {2 * GB // 1024}; exec "$0" -c "{program}"', sys.executable]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    alone, shared = map(int, done.stdout.split())
    assert 1 * GB < alone < 2 * GB
    assert shared <= alone


def test_a_real_limit_of_a_process_is_kept_to() -> None:
    program = "from lockstep.memory import free_memory; print(free_memory())"
    limited = ["bash", "-c", f'ulimit -v {GB // 1024}; exec "$0" -c "{program}"', sys.executable]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < GB
