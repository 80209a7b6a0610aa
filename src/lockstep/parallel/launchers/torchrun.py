"""torchrun (or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as it does)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import UserError
from lockstep.parallel.context import Meet, WorkerContext
from lockstep.parallel.launchers.variables import integer, local_of, meet_at_master, rank_of


def is_genuine(environ: Mapping[str, str]) -> bool:
    """Whether torchrun itself set the variables; a shell may carry RANK and WORLD_SIZE for other reasons."""
    return "TORCHELASTIC_RUN_ID" in environ


def detect(environ: Mapping[str, str]) -> WorkerContext | None:
    if not is_genuine(environ) and not {"RANK", "WORLD_SIZE"} <= environ.keys():
        return None
    rank, size = rank_of(environ, "RANK", "WORLD_SIZE")
    local_rank, local_size = local_of(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE", size)
    attempt = integer(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    meet = Meet("nobody") if size == 1 else _meet(environ, size, attempt)
    return WorkerContext("torchrun", rank, size, local_rank, local_size, meet=meet, attempt=attempt)


def _meet(environ: Mapping[str, str], size: int, attempt: int) -> Meet:
    meet = meet_at_master(environ)
    if meet is None:
        raise UserError(
            f"WORLD_SIZE says {size} ranks, but MASTER_ADDR and MASTER_PORT do not say where they meet",
            where="environment variables MASTER_ADDR, MASTER_PORT",
            value=(environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")),
            remedy="start with torchrun, or set both to a host and a free port of rank 0",
        )
    # After a restart by --max-restarts torchrun's store is used again: old keys must not be found in it. A store of
    # rank 0's own is new each time, and nodes that came later count fewer attempts.
    hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    prefix = f"lockstep/attempt_{attempt}" if hosted else "lockstep"
    return Meet("address", meet.host, meet.port, hosted=hosted, prefix=prefix)


def set_threads_itself(environ: Mapping[str, str], process: int | None = None) -> bool:
    """Whether torchrun, not the user, put OMP_NUM_THREADS=1 there.

    It does so whenever it starts several workers and the variable is unset, which would leave most cores of a
    node idle. What the user set is in the environment torchrun itself was started with.
    """
    if not is_genuine(environ) or environ.get("OMP_NUM_THREADS") != "1":
        return False
    try:
        started_with = Path(f"/proc/{process or os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    names = {entry.split(b"=", 1)[0] for entry in started_with.split(b"\0")}
    return bool(started_with) and b"OMP_NUM_THREADS" not in names


def started_at(process: int | None = None) -> float:
    """When torchrun was started, in seconds since 1970; 0 where that cannot be known."""
    try:
        fields = Path(f"/proc/{process or os.getppid()}/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
