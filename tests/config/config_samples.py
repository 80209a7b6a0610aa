"""A small valid input, and a way to spoil it."""

from __future__ import annotations

import copy
from typing import Any

VALID: dict[str, Any] = {
    "model": {
        "type_map": ["O", "H"],
        "descriptor": {"type": "se_e2_a", "sel": [46, 92], "neuron": [25, 50, 100], "axis_neuron": 16},
        "fitting_net": {"neuron": [24, 24]},
    },
    "learning_rate": {"start_lr": 0.001, "stop_lr": 1e-8},
    "training": {"training_data": {"systems": ["water/a", "water/b"]}, "numb_steps": 100},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the valid input with the key at a dotted path set, making sections on the way."""
    result = copy.deepcopy(VALID)
    *parents, last = path.split(".")
    section = result
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return result


def without(path: str) -> dict[str, Any]:
    """Return the valid input without the key at a dotted path."""
    result = changed(path, None)
    *parents, last = path.split(".")
    section = result
    for parent in parents:
        section = section[parent]
    del section[last]
    return result


def at(data: Any, path: str) -> Any:
    """Return the attribute at a dotted path."""
    for name in path.split("."):
        data = getattr(data, name)
    return data
