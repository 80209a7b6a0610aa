"""A worker that splits its group and exchanges in the parts: splitter.py FOLDER; each rank writes what it got."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from lockstep.parallel import launchers
from lockstep.parallel.group import Group
from lockstep.parallel.mesh import Mesh
from lockstep.parallel.opening import open_group


def exchanged(group: Group, world: Group) -> dict[str, object]:
    small, large = (torch.full((n,), 2.0**world.rank, dtype=torch.float64) for n in (3, 1 << 15))
    group.all_reduce(small)
    group.all_reduce(large)
    sent = torch.tensor([float(world.rank)])
    group.broadcast(sent, group.size - 1)
    group.barrier()
    return {
        "rank": group.rank,
        "size": group.size,
        "sum": [float(small[0]), float(large[-1])],
        "last": float(sent),
        "members": group.all_gather_object(world.rank),
    }


def main() -> None:
    world = open_group(launchers.detect(os.environ), "cpu", 20.0)
    mesh = Mesh.of(world, 2)
    answer = {name: exchanged(getattr(mesh, name), world) for name in ("world", "data", "frame")}
    answer["counts"] = world.progress.counts()
    answer["engine"] = world.name
    (Path(sys.argv[1]) / f"rank_{world.rank}.json").write_text(json.dumps(answer))
    world.close()


if __name__ == "__main__":
    main()
