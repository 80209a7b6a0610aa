"""What counts as a neighbour: said by a descriptor's configuration, looked for by geometry."""

from __future__ import annotations

from dataclasses import dataclass, replace

UNLIMITED = 1 << 30
"""Slots that are never all taken."""


@dataclass(frozen=True)
class Cutoff:
    """What counts as a neighbour, and how many of them have a slot.

    Attributes:
        rcut: cutoff radius in Angstrom.
        rcut_smth: where the switching function begins to fall from one.
        sel: slots for each neighbour type; of more neighbours the nearest are kept.
        exclude: pairs of types that do not see each other, in both orders.
        protection: added to the distance where it is divided by (`env_protection`).
        shared: slots for neighbours of all types together, of which the nearest are kept; None where each type has
            its own.
    """

    rcut: float
    rcut_smth: float
    sel: tuple[int, ...]
    exclude: frozenset[tuple[int, int]] = frozenset()
    protection: float = 0.0
    shared: int | None = None

    @property
    def ntypes(self) -> int:
        return len(self.sel)

    @property
    def n_slots(self) -> int:
        """All slots of a centre."""
        return sum(self.sel) if self.shared is None else self.shared

    @property
    def key(self) -> tuple[object, ...]:
        """All that the neighbour pairs of a frame depend on: equal for cutoffs that find the same pairs."""
        return self.rcut, self.sel, self.exclude, self.shared

    def unlimited(self) -> Cutoff:
        """The same with a slot for everyone, for counting neighbours."""
        return replace(self, sel=(UNLIMITED,) * self.ntypes, shared=None)
