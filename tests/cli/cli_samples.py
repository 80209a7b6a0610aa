"""Small models and systems on disk, for the tests of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.interop.deepmd import save_dp
from lockstep.model import Potential
from potentials import Frame, evaluate, random_frame, random_potential

TYPES = ("O", "H")


@dataclass(frozen=True)
class Sample:
    """A system whose labels are a potential's answers, shifted by known errors."""

    path: Path
    frames: list[Frame]
    energy: NDArray
    force: NDArray
    virial: NDArray


def write_model(path: Path, seed: int = 0, **options: object) -> Potential:
    potential = random_potential(seed=seed, **options)  # type: ignore[arg-type]
    save_dp(potential, path)
    return potential


def write_system(
    path: Path,
    potential: Potential,
    *,
    kind: str = "cubic",
    count: int = 5,
    n: int = 6,
    seed: int = 0,
    labels: tuple[str, ...] = ("energy", "force", "virial"),
    shifts: dict[str, NDArray] | None = None,
) -> Sample:
    """Write frames of one composition, with those labels that are asked for."""
    types = random_frame(kind, n, seed).types
    frames = [Frame(f.coord, f.cell, types) for f in (random_frame(kind, n, seed + i) for i in range(count))]
    said = evaluate(potential, *frames)
    arrays = {
        "energy": said.energy.numpy(),
        "force": said.force.numpy().reshape(count, -1),
        "virial": said.virial.numpy().reshape(count, -1),
        "atom_ener": said.atom_energy.numpy(),
    }
    sets = path / "set.000"
    sets.mkdir(parents=True)
    np.savetxt(path / "type.raw", types, fmt="%d")
    (path / "type_map.raw").write_text("\n".join(TYPES))
    np.save(sets / "coord.npy", np.stack([f.coord.ravel() for f in frames]))
    if frames[0].cell is None:
        (path / "nopbc").touch()
    else:
        np.save(sets / "box.npy", np.stack([f.cell.ravel() for f in frames if f.cell is not None]))
    for name in labels:
        np.save(sets / f"{name}.npy", arrays[name] + (shifts or {}).get(name, 0.0))
    return Sample(path, frames, arrays["energy"], arrays["force"].reshape(count, n, 3), arrays["virial"])
