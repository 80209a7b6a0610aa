"""srun, where it starts the ranks itself.

A batch script's own shell looks like a task as well (SLURM_PROCID=0, SLURM_NTASKS > 1), though only one process
runs there. What tells them apart is the step: srun numbers its steps from 0 and counts their tasks in
SLURM_STEP_NUM_TASKS; the shell of a batch script, an interactive or an external step has no step number or one
of the reserved numbers at the top of 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lockstep.errors import UserError
from lockstep.parallel.context import UNKNOWN, Meet, WorkerContext
from lockstep.parallel.launchers.variables import integer, meet_at_master, rank_of

_FIRST_RESERVED_STEP = 0xFFFFFFF0
# Below the ports that kernels hand out by themselves (32768 upwards on Linux).
_FIRST_PORT, _PORTS = 20000, 12000


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if not is_task(environ):
        return None
    rank, size = rank_of(environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    nodes = tuple(expand_nodes(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", ""))))
    meet = Meet("nobody") if size == 1 else _meet(environ, nodes)
    return WorkerContext(
        "slurm", rank, size, integer(environ, "SLURM_LOCALID", UNKNOWN), _local_size(environ), nodes, meet
    )


def is_task(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as a task, rather than a batch script's shell."""
    if not {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"} <= environ.keys():
        return False
    return integer(environ, "SLURM_STEP_ID") < _FIRST_RESERVED_STEP


def _meet(environ: Mapping[str, str], nodes: tuple[str, ...]) -> Meet:
    given = meet_at_master(environ)
    if given is not None:
        return given
    if not nodes:
        raise UserError(
            "no list of nodes to find rank 0 on",
            where="environment variable SLURM_STEP_NODELIST",
            remedy="set MASTER_ADDR and MASTER_PORT to a host and a free port of rank 0",
        )
    step = integer(environ, "SLURM_JOB_ID", 0) * 61 + integer(environ, "SLURM_STEP_ID")
    return Meet("address", nodes[0], _FIRST_PORT + step % _PORTS)


def _local_size(environ: Mapping[str, str]) -> int:
    """Ranks on this node, from a list such as `2(x3),1` that counts them node by node."""
    counts: list[int] = []
    for item in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            return UNKNOWN
        counts += [int(match[1])] * int(match[2] or 1)
    node = integer(environ, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else UNKNOWN


def expand_nodes(text: str) -> list[str]:
    """Host names out of Slurm's short form: `a[01-03,7],b` gives a01, a02, a03, a7, b."""
    names: list[str] = []
    for item in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        names += _expand(item)
    return names


def _expand(item: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", item)
    if match is None:
        return [item]
    head, tail = item[: match.start()], _expand(item[match.end() :])
    numbers: list[str] = []
    for span in match[1].split(","):
        first, _, last = span.partition("-")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return [f"{head}{number}{rest}" for number in numbers for rest in tail]
