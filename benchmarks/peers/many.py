"""Many small systems: 50,000 of two frames and twelve atoms each, against one system that holds the same frames."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import inputs
import numpy as np
from measure import environment, pinned, say, watch
from programs import LOCKSTEP, PROGRAMS, Program
from speed import describe, summary

FRAMES = 2
CELL = 5.6
SITES = CELL * np.array([[0.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
MOLECULE = np.array([[0.0, 0.0, 0.0], [0.76, 0.59, 0.0], [-0.76, 0.59, 0.0]])
TYPES = np.repeat([0, 1], [4, 8])
TIMEOUT = 1800.0
STEPS, EVERY = 2000, 100

Arrays = dict[str, np.ndarray]


def measure_many(systems: int, peer_systems: int, keys: list[str], core: int, quick: bool) -> dict[str, Any]:
    """Lockstep on all systems and on one; DeePMD-kit, whose start-up grows with their number, on fewer if at all."""
    steps, every = (40, 10) if quick else (STEPS, EVERY)
    record: dict[str, Any] = {"systems": systems, "peer_systems": peer_systems, "peers": {}}
    with tempfile.TemporaryDirectory(prefix="peers-many-") as name:
        top = Path(name)
        say(f"writing {systems} systems of {FRAMES} frames and {len(TYPES)} atoms")
        frames = random_frames(systems * FRAMES)
        write_systems(top / "many", frames, systems)
        write_systems(top / "one", frames, 1)
        write_systems(top / "few", frames, peer_systems)
        # Once for the files as they were just written, once for files that the system has in its cache.
        record["fresh"] = measure_program(LOCKSTEP, top, "many", every, every, core)
        for place in ("many", "one"):
            record[place] = measure_program(LOCKSTEP, top, place, steps, every, core)
        peers = [key for key in keys if peer_systems and key != LOCKSTEP.key]
        for key in peers:
            record["peers"][key] = measure_program(PROGRAMS[key], top, "few", 3 * every, every, core)
        say("removing the systems")
    return record


def measure_program(program: Program, top: Path, place: str, steps: int, every: int, core: int) -> dict[str, Any]:
    folder = top / f"{place}-{program.key}"
    config = inputs.water("float64", 1)
    config["training"]["training_data"]["systems"] = str(top / place)
    inputs.write(inputs.lasting(config, steps, every), folder)
    run = watch(pinned(program.call("train", "input.json"), core), folder, environment(), TIMEOUT)
    record = summary(run, every)
    say(f"    {program.title:24s} {place:5s} {describe(record)}")
    return record


def random_frames(count: int) -> Arrays:
    """Four water molecules each, turned and shifted at random about the sites of a face-centred lattice."""
    rng = np.random.default_rng(7)
    centres = SITES + rng.uniform(-0.2, 0.2, (count, 4, 3))
    atoms = centres[:, :, None] + np.einsum("fmij,aj->fmai", rotations(rng, (count, 4)), MOLECULE)
    coord = np.concatenate([atoms[:, :, 0], atoms[:, :, 1:].reshape(count, 8, 3)], axis=1)
    force = rng.normal(0.0, 0.5, coord.shape)
    force -= force.mean(axis=1, keepdims=True)
    return {
        "coord": coord.reshape(count, -1).astype(np.float32),
        "force": force.reshape(count, -1).astype(np.float32),
        "energy": (-60.0 + rng.normal(0.0, 0.1, count)).astype(np.float32),
        "box": np.tile(np.diag([CELL] * 3).ravel(), (count, 1)).astype(np.float32),
    }


def rotations(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniformly random rotation matrices, from unit quaternions."""
    q = rng.normal(size=(*shape, 4))
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def write_systems(top: Path, frames: Arrays, count: int) -> None:
    """Deal the frames to so many systems; a folder holds a thousand at most."""
    each = len(frames["energy"]) // count if count == 1 else FRAMES
    types, names = "\n".join(map(str, TYPES)) + "\n", "O\nH\n"
    for number in range(count):
        system = top / f"{number // 1000:03d}" / f"system.{number:05d}"
        (system / "set.000").mkdir(parents=True)
        (system / "type.raw").write_text(types)
        (system / "type_map.raw").write_text(names)
        for name, values in frames.items():
            np.save(system / "set.000" / f"{name}.npy", values[number * each : (number + 1) * each])
