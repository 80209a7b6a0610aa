"""Exchanges between two nodes with two ranks each, which are network namespaces of this machine. As root:

    python benchmarks/nodes.py

Runs benchmarks/exchange.py under torchrun on both: sums that go through the memory of each node first, and beside them
the same through sockets alone. The cable between the namespaces is as fast as memory, and four ranks share the cores of
one machine: what is measured is the work of the processors, not a network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parallel"))
from cluster import two_hosts  # noqa: E402 - of the tests, which have such clusters too


def main() -> None:
    options = ["--nnodes=2", "--nproc_per_node=2", "--master_addr=10.77.0.1", "--master_port=29400"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with two_hosts() as hosts:
        jobs = [
            subprocess.Popen(
                [
                    *(*host, sys.executable, "-m", "torch.distributed.run", *options, f"--node_rank={number}"),
                    str(ROOT / "benchmarks" / "exchange.py"),
                ],
                env=environ,
            )
            for number, host in enumerate(hosts)
        ]
        sys.exit(max(job.wait() for job in jobs))


if __name__ == "__main__":
    main()
