"""What a worker knows about the job it belongs to, as told by the launcher that started it."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = -1


@dataclass(frozen=True)
class Meet:
    """How the ranks find each other before they share a group.

    kind:
        nobody   a single process: nothing to find;
        address  a TCP store at host:port; rank 0 opens it, unless the launcher already `hosted` it;
        http     a key-value server of the launcher at host:port, where rank 0 leaves the address of its store;
        mpi      through MPI itself (mpi4py).
    """

    kind: str
    host: str = ""
    port: int = 0
    hosted: bool = False
    prefix: str = "lockstep"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else self.kind


@dataclass(frozen=True)
class WorkerContext:
    """One worker among `size`; equal in shape whatever launcher started it.

    `local_rank` and `local_size` are UNKNOWN and `nodes` empty where the launcher did not tell; they are
    completed when the ranks have met (`open_group`), and never UNKNOWN in `group.context`.
    `attempt` counts the restarts that the launcher has made after a fault.
    `remark` is something the user should know about how the job was started; the log shows it.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int = UNKNOWN
    local_size: int = UNKNOWN
    nodes: tuple[str, ...] = ()
    meet: Meet = Meet("nobody")
    attempt: int = 0
    remark: str = ""
