"""The text form of a communication profile, for people and for scripts that read mpitrace's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.observe.profile import Own, Record, Tally

_RULE = "-" * 71


def profile_text(record: Record) -> str:
    """The whole file."""
    lines = [
        f"Data for MPI rank {record.rank} of {record.size}:",
        "Times and statistics from the start of the training to its end.",
        _RULE,
        f"{'MPI Routine':24s} {'#calls':>12s} {'avg. bytes':>14s} {'time(sec)':>14s}",
        _RULE,
        *(_row(f"{name:24s}", tallies) for name, tallies in record.routines.items()),
        _RULE,
        *_totals(record),
        _RULE,
        "Message size distributions:",
        *_distributions(record, "time(sec)", lambda tally: tally.seconds),
        _RULE,
        "Waiting for other ranks (the rest of each time is transfer):",
        *_waits(record),
    ]
    return "\n".join(lines) + "\n"


def _totals(record: Record) -> list[str]:
    own = record.own
    lines = [
        *_extremes(record),
        f"total communication time = {own.communication:.3f} seconds.",
        f"of it waiting for other ranks = {own.wait:.3f} seconds.",
        f"total elapsed time = {own.elapsed:.3f} seconds.",
        f"user cpu time = {own.user:.3f} seconds.",
        f"system time = {own.system:.3f} seconds.",
        f"max resident set size = {own.memory:.3f} MBytes.",
        "",
    ]
    if not record.complete:
        return [*lines, "The run ended early: nothing is known about the other ranks."]
    largest, longest = _most(record, lambda r: r.memory), _most(record, lambda r: r.elapsed)
    return [
        *lines,
        f"Rank {largest} reported the largest memory utilization : {record.ranks[largest].memory:.2f} MBytes",
        f"Rank {longest} reported the largest elapsed time : {record.ranks[longest].elapsed:.2f} sec",
    ]


def _extremes(record: Record) -> list[str]:
    if not record.complete:
        return []
    most, least = _most(record, lambda r: r.communication), _most(record, lambda r: -r.communication)
    return [
        f"MPI task {most} of {record.size} had the maximum communication time.",
        f"MPI task {least} of {record.size} had the minimum communication time.",
    ]


def _most(record: Record, value: Callable[[Own], float]) -> int:
    return max(range(len(record.ranks)), key=lambda rank: value(record.ranks[rank]))


def _distributions(record: Record, title: str, value: Callable[[Tally], float]) -> list[str]:
    lines = []
    for name, tallies in record.routines.items():
        lines.append(f"{'':10s}{name:24s} {'#calls':>10s} {'avg. bytes':>14s} {title:>14s}")
        lines += [f"{'':35s}{t.calls:10d} {t.bytes / t.calls:14.1f} {value(t):14.3f}" for t in tallies]
        lines.append("")
    return lines[:-1]


def _waits(record: Record) -> list[str]:
    return [
        f"{name:24s} wait {sum(t.wait for t in tallies):.3f} seconds, "
        f"transfer {sum(t.seconds - t.wait for t in tallies):.3f} seconds"
        for name, tallies in record.routines.items()
    ]


def _row(label: str, tallies: Sequence[Tally]) -> str:
    calls, size = sum(t.calls for t in tallies), sum(t.bytes for t in tallies)
    return f"{label} {calls:12d} {size / calls:14.1f} {sum(t.seconds for t in tallies):14.3f}"
