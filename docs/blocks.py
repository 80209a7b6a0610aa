"""Draws docs/pictures/blocks.png: a frame of the water example, repeated in the plane, as four workers share it.

    python docs/blocks.py

The blocks are those that a training makes, the halo is what the search for neighbours looks at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.geometry.blocks import block_pairs, divide
from lockstep.observe.picture import COLOURS, STYLE, pyplot, save

DOCS = Path(__file__).resolve().parent
SYSTEM = DOCS.parent / "examples" / "water" / "data" / "train_0"
REPEATS, WORKERS, CUTOFF = (3, 3, 1), 4, 6.0


def frame() -> tuple[NDArray, NDArray, NDArray]:
    """Coordinates, cell and types."""
    cell = np.load(SYSTEM / "set.000" / "box.npy")[0].reshape(3, 3).astype(np.float64)
    coord = np.load(SYSTEM / "set.000" / "coord.npy")[0].reshape(-1, 3) @ np.linalg.inv(cell) % 1.0 @ cell
    types = np.loadtxt(SYSTEM / "type.raw", dtype=np.int64)
    shifts = np.stack(np.meshgrid(*map(np.arange, REPEATS), indexing="ij"), axis=-1).reshape(-1, 3)
    whole = (coord[None] + (shifts @ cell)[:, None]).reshape(-1, 3)
    return whole, cell * np.array(REPEATS)[:, None], np.tile(types, len(shifts))


def draw() -> Any:
    """Left the atoms of all workers, right those of one of them and the images that they see."""
    plt = pyplot()
    coord, cell, types = frame()
    owner = divide(coord, cell, types, WORKERS)
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4.4), layout="constrained", sharex=True, sharey=True)
        for worker in range(WORKERS):
            mine = coord[owner == worker]
            left.scatter(*mine[:, :2].T, s=5, color=COLOURS[worker], label=f"worker {worker}: {len(mine)} atoms")
        centre, _, vector = block_pairs(coord, cell, CUTOFF, owner == 0)
        seen = coord[centre] + vector
        right.scatter(*seen[:, :2].T, s=5, color="#c9c9c9", label=f"within {CUTOFF:g} Å of them")
        right.scatter(*coord[owner == 0][:, :2].T, s=5, color=COLOURS[0], label="atoms of worker 0")
        for axis in (left, right):
            axis.plot(*(np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) @ cell[:2, :2]).T, color="#333333", lw=0.8)
            axis.set(aspect="equal", xlabel="x, Å")
            axis.grid(visible=False)
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), frameon=False, ncols=2, fontsize=9)
        left.set_ylabel("y, Å")
        return figure


if __name__ == "__main__":
    save(DOCS / "pictures" / "blocks.png", draw)
