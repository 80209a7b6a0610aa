"""Input files of the benchmark: the water example's model and data, with other lengths."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT

WATER = ROOT / "examples" / "water"
Config = dict[str, Any]


def water(precision: str, batch: int) -> Config:
    """The water example without validation, so that only steps are timed."""
    config: Config = json.loads((WATER / "input.json").read_text())
    for section in ("descriptor", "fitting_net"):
        config["model"][section]["precision"] = precision
    training = config["training"]
    data = training["training_data"]
    data.update(systems=[str(WATER / system) for system in data["systems"]], batch_size=batch)
    del training["validation_data"]
    return config


def learning(config: Config, start: float, stop: float, decay_steps: int) -> Config:
    """The same with another learning rate."""
    return {
        **config,
        "learning_rate": {"type": "exp", "start_lr": start, "stop_lr": stop, "decay_steps": decay_steps},
    }


def lasting(config: Config, steps: int, every: int) -> Config:
    """The same for so many steps, with a row of the learning curve every so often, and saved at the end only."""
    training = {**config["training"], "numb_steps": steps, "disp_freq": every, "save_freq": steps}
    return {**config, "training": training}


def seeded(config: Config, seed: int) -> Config:
    """The same with other random numbers everywhere."""
    copy: Config = json.loads(json.dumps(config))
    copy["model"]["descriptor"]["seed"] = copy["model"]["fitting_net"]["seed"] = copy["training"]["seed"] = seed
    return copy


def write(config: Config, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input.json").write_text(json.dumps(config, indent=2))


def frames(config: Config) -> int:
    """Frames of the training data."""
    sets = (s for system in config["training"]["training_data"]["systems"] for s in Path(system).glob("set.*"))
    return sum(len(np.load(one / "coord.npy", mmap_mode="r")) for one in sets)


def atoms_of_types(config: Config) -> list[int]:
    """Atoms of each type in a frame of the first system."""
    system = Path(config["training"]["training_data"]["systems"][0])
    counts = Counter((system / "type.raw").read_text().split())
    return [counts[name] for name in sorted(counts)]


def fitting_widths(config: Config) -> list[int]:
    """Widths of the fitting net: descriptor, then hidden layers."""
    descriptor = config["model"]["descriptor"]
    return [descriptor["neuron"][-1] * descriptor["axis_neuron"], *config["model"]["fitting_net"]["neuron"]]
