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


def descriptors() -> dict[str, Config]:
    """The native descriptors other than the example's own, with nets of the same widths and the same cutoff."""
    common = {"rcut": 6.0, "rcut_smth": 0.5, "neuron": [25, 50, 100], "seed": 1}
    angular = {**common, "sel": [46, 92], "axis_neuron": 16}
    types = {**common, "sel": 138, "axis_neuron": 16, "attn_layer": 0, "tebd_dim": 8}
    radial = {**common, "type": "se_e2_r", "sel": [46, 92], "type_one_side": True}
    short = {**angular, "type": "se_e2_a", "rcut": 4.0, "sel": [16, 32], "type_one_side": True}
    return {
        "se_e2_r": radial,
        "dpa1, concat": {**types, "type": "dpa1"},
        "dpa1, strip": {**types, "type": "dpa1", "tebd_input_mode": "strip", "smooth_type_embedding": False},
        "se_atten_v2": {**types, "type": "se_atten_v2"},
        "hybrid": {"type": "hybrid", "list": [short, radial]},
    }


def described(config: Config, descriptor: Config, precision: str) -> Config:
    """The same with another descriptor."""
    parts = [{**part, "precision": precision} for part in descriptor.get("list", [descriptor])]
    chosen = {**descriptor, "list": parts} if "list" in descriptor else parts[0]
    return {**config, "model": {**config["model"], "descriptor": chosen}}


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
