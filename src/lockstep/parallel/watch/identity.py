"""Which process a rank is; enough to be sure never to end another one in its place."""

from __future__ import annotations

import logging
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    rank: int
    host: str
    process: int
    started: int
    namespace: str

    @classmethod
    def own(cls, rank: int) -> Identity:
        return cls(rank, socket.gethostname(), os.getpid(), _started(os.getpid()), _namespace())

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.process})"

    def kill(self) -> None:
        """Ends a stopped process of this node, which no launcher could ask to leave."""
        if self.namespace == _namespace() and self.started == _started(self.process) != 0:
            try:
                os.kill(self.process, signal.SIGKILL)
            except OSError as problem:
                log.warning("could not end %s: %s", self, problem)


def _started(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def _namespace() -> str:
    """The kernel's boot and the process table this process lives in: equal only within one machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()
