"""What a model is, in words: what `dp show` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.errors import UserError
from lockstep.model import Potential

_BIAS_OF_UNSEEN = 1e-6


def describe(potential: Potential, attribute: str) -> list[str]:
    """The lines of one attribute, named as in DeePMD-kit."""
    return list(_DESCRIBERS[attribute](potential))


def _branches(potential: Potential) -> Iterator[str]:
    raise UserError(
        "this model has no branches: it was trained for one task",
        where="model-branch",
        remedy="ask for " + ", ".join(name for name in ATTRIBUTES if name != "model-branch"),
    )


def _types(potential: Potential) -> Iterator[str]:
    yield f"The type_map is {list(potential.type_map)}"


def _descriptor(potential: Potential) -> Iterator[str]:
    yield f"The descriptor parameter is {potential.config.descriptor.model_dump(mode='json')}"


def _fitting(potential: Potential) -> Iterator[str]:
    yield f"The fitting_net parameter is {potential.config.fitting_net.model_dump(mode='json')}"


def _size(potential: Potential) -> Iterator[str]:
    network = potential.network
    parts = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in (("descriptor", network.descriptor), ("fitting-net", network.fitting))
    }
    yield "Parameter counts:"
    for name, count in (*parts.items(), ("total", sum(parts.values()))):
        yield f"Parameters in {name}: {count:,}"


def _observed(potential: Potential) -> Iterator[str]:
    """Types that had atoms in the training data: the others are left without an energy bias."""
    bias = potential.network.bias.abs().tolist()
    seen = [name for name, value in zip(potential.type_map, bias, strict=True) if value > _BIAS_OF_UNSEEN]
    yield "The observed types for this model: "
    yield f"Number of observed types: {len(seen)} "
    yield f"Observed types: {seen} "


def _tree(potential: Potential) -> Iterator[str]:
    from lockstep.interop.deepmd import save_dp
    from lockstep.interop.exchange import read_tree

    with TemporaryDirectory(prefix="lockstep-") as folder:
        path = Path(folder) / "model.dp"
        save_dp(potential, path)
        tree = read_tree(path)["model"]
    yield "Model serialization tree:"
    yield from _branch(tree)


_DESCRIBERS: dict[str, Callable[[Potential], Iterator[str]]] = {
    "model-branch": _branches,
    "type-map": _types,
    "descriptor": _descriptor,
    "fitting-net": _fitting,
    "size": _size,
    "observed-type": _observed,
    "serialization-tree": _tree,
}
ATTRIBUTES = tuple(_DESCRIBERS)


def _branch(node: dict[str, Any] | list[Any]) -> list[str]:
    """A node and those below it as a drawn tree; neighbours that look the same are drawn once."""
    drawn: list[tuple[str, list[str]]] = []
    for key, child in _children(node):
        lines = _branch(child)
        if drawn and drawn[-1][1] == lines:
            drawn[-1] = (f"{drawn[-1][0].split('...')[0]}...{key}", lines)
        else:
            drawn.append((key, lines))
    result = [f"{_title(node)} (size={_size_of(node):,})"]
    for number, (key, lines) in enumerate(drawn, start=1):
        last = number == len(drawn)
        result.append(f"{'└──' if last else '├──'}{key} -> {lines[0]}")
        result += [f"{'   ' if last else '│  '}{line}" for line in lines[1:]]
    return result


def _children(node: dict[str, Any] | list[Any]) -> list[tuple[str, Any]]:
    items = node.items() if isinstance(node, dict) else ((str(number), item) for number, item in enumerate(node))
    return [
        (key, item)
        for key, item in items
        if key != "@variables" and (isinstance(item, dict) or (isinstance(item, list) and _children(item)))
    ]


def _title(node: dict[str, Any] | list[Any]) -> str:
    if isinstance(node, list):
        return "ListNode"
    return " ".join(str(node[key]) for key in ("@class", "type") if key in node) or "Node"


def _size_of(node: Any) -> int:
    if isinstance(node, np.ndarray):
        return int(node.size)
    if isinstance(node, dict):
        return sum(_size_of(item) for item in node.values())
    return sum(_size_of(item) for item in node) if isinstance(node, list) else 0
