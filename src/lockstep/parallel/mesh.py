"""The axes of parallelism: which ranks work on different micro-batches, and which share the atoms of one.

W ranks are D x S: D groups see different micro-batches, the S ranks of each share one. The stream of micro-batches, the
pace and the learning rate go by D; gradients are summed over all W and divided by the number of micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockstep.errors import UserError
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.group import Group


@dataclass(frozen=True)
class Mesh:
    """The groups that a rank belongs to.

    Attributes:
        world: all ranks.
        data: one rank for each micro-batch of a step: those with this rank's place in their frame groups.
        frame: the ranks that share this rank's micro-batch; neighbours in the world, so that they share a node.
    """

    world: Group
    data: Group
    frame: Group

    @classmethod
    def of(cls, world: Group, ranks_per_frame: int = 1, where: str = "ranks per frame") -> Mesh:
        """All ranks must call it. Raises UserError where the ranks cannot be dealt out evenly."""
        if ranks_per_frame < 1 or world.size % ranks_per_frame:
            raise UserError(
                f"{world.size} ranks cannot be divided into groups of it",
                where=where,
                value=ranks_per_frame,
                remedy=f"choose one of {', '.join(map(str, divisors(world.size)))}, or another number of ranks",
            )
        if ranks_per_frame == 1:
            frame = SoloGroup(replace(world.context, rank=0, size=1))
            frame.belong_to(world, f"frame {world.rank}")
            return cls(world, world, frame)
        return cls(world, world.split(world.rank % ranks_per_frame), world.split(world.rank // ranks_per_frame))


def divisors(number: int) -> list[int]:
    """All numbers that divide it, in order."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
