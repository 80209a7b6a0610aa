"""Copper in LAMMPS and here: writes the starting frame, then compares the forces of a trajectory.

python copper.py write SYSTEM      copper.lmp, from the first frame of a system
python copper.py compare MODEL     the forces in trajectory.dump with those of lockstep.DP
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LIMIT = 1e-8


def write(system: str) -> None:
    """LAMMPS wants the cell as edges and tilts; the example's is a box."""
    first = Path(system) / "set.000"
    cell = np.load(first / "box.npy")[0].reshape(3, 3)
    assert np.allclose(cell, np.diag(np.diag(cell))), "the example's cells are rectangular"
    coord = np.load(first / "coord.npy")[0].reshape(-1, 3)
    lines = ["copper", "", f"{len(coord)} atoms", "1 atom types", ""]
    lines += [f"0.0 {edge:.16g} {axis}lo {axis}hi" for axis, edge in zip("xyz", np.diag(cell), strict=True)]
    lines += ["", "Atoms", ""]
    lines += [f"{number} 1 " + " ".join(f"{x:.16g}" for x in place) for number, place in enumerate(coord, start=1)]
    Path("copper.lmp").write_text("\n".join(lines) + "\n", encoding="utf-8")


def frames(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(bounds [3, 2], rows [atoms, 7]) of every frame of a dump."""
    found = []
    for block in Path(path).read_text(encoding="utf-8").split("ITEM: TIMESTEP")[1:]:
        lines = block.strip().splitlines()
        atoms = int(lines[2])
        bounds = np.array([[float(word) for word in line.split()] for line in lines[4:7]])
        found.append((bounds, np.array([[float(word) for word in line.split()] for line in lines[8 : 8 + atoms]])))
    return found


def compare(model: str) -> int:
    """0 where every force agrees."""
    from ase import Atoms

    from lockstep import DP

    calculator, largest, trajectory = DP(model), 0.0, frames("trajectory.dump")
    for bounds, rows in trajectory:
        cell = np.diag(bounds[:, 1] - bounds[:, 0])
        atoms = Atoms(f"Cu{len(rows)}", rows[:, 1:4] - bounds[:, 0], cell=cell, pbc=True, calculator=calculator)
        largest = max(largest, float(np.abs(atoms.get_forces() - rows[:, 4:]).max()))
    print(f"{len(trajectory)} frames: forces differ by at most {largest:.1e} eV/A (limit {LIMIT:.0e})")
    return int(not (len(trajectory) == 21 and largest < LIMIT))


if __name__ == "__main__":
    sys.exit(write(sys.argv[2]) if sys.argv[1] == "write" else compare(sys.argv[2]))
