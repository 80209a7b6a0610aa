"""No launcher: one process that trains by itself."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.parallel.context import WorkerContext


def detect(environ: Mapping[str, str]) -> WorkerContext:
    """Always answers; asked last."""
    return WorkerContext("alone", 0, 1, 0, 1, remark=_slurm_remark(environ))


def _slurm_remark(environ: Mapping[str, str]) -> str:
    tasks = environ.get("SLURM_NTASKS", "1")
    if "SLURM_JOB_ID" in environ and tasks.isdigit() and int(tasks) > 1:
        return f"Slurm reserved {tasks} tasks, but this command runs once: start it with srun to use them all"
    return ""
