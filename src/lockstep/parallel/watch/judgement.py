"""Rank 0's judgement: who is missing, when a rank has waited for too long. Pure functions of what was last heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.parallel.watch.work import patience


@dataclass
class Seen:
    """What was last heard from a rank.

    Attributes:
        time: when that was, by `time.monotonic`.
        counts: how many exchanges it has come to, in each group that it belongs to.
        inside: the group it is in an exchange of; empty outside of one.
        idle: seconds since its last sign of work.
    """

    time: float
    step: int = 0
    phase: str = "start"
    counts: dict[str, int] = field(default_factory=dict)
    inside: str = ""
    idle: float = 0.0

    @property
    def where(self) -> str:
        return f"step {self.step} ({self.phase})"


def missing(seen: Sequence[Seen], rank: int) -> list[int]:
    """Those that have not come to the exchange that `rank` is in."""
    group = seen[rank].inside
    wanted = seen[rank].counts.get(group, 0)
    return [r for r, other in enumerate(seen) if other.counts.get(group, wanted) < wanted]


def awaited(seen: Sequence[Seen], rank: int) -> list[int]:
    """Those that `rank` waits for in the end: who it waits for may itself wait for others, in another group."""
    found: set[int] = set()
    asked, to_ask = {rank}, [rank]
    while to_ask:
        for other in missing(seen, to_ask.pop()):
            if other in asked:
                continue
            asked.add(other)
            if seen[other].inside and missing(seen, other):
                to_ask.append(other)
            else:
                found.add(other)
    return sorted(found)


def is_at_work(seen: Seen, timeout: float) -> bool:
    """A rank that is slow, rather than one that hangs or waits."""
    return not seen.inside and seen.idle < patience(seen.phase, timeout)
