"""Draws docs/pictures/layers.png: which package imports which, in the order of their layers.

    python docs/layers.py

Layers are read from pyproject.toml, imports from the code itself, so that the picture shows what is.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import tomllib

from lockstep.observe.picture import COLOURS, STYLE, pyplot, save

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "lockstep"


def layers() -> list[list[str]]:
    """The packages of each layer, from the top."""
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        (contract,) = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def imports() -> Counter[tuple[str, str]]:
    """How many import statements there are from one package to another."""
    found: Counter[tuple[str, str]] = Counter()
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockstep."):
                found[package, str(node.module).split(".")[1]] += 1
    return found


def draw() -> Any:
    """A row for each package, a column for each: dots above the diagonal alone means that imports go downwards only."""
    plt = pyplot()
    names = [name for layer in layers() for name in layer]
    place = {name: number for number, name in enumerate(names)}
    found = {pair: count for pair, count in imports().items() if pair[0] != pair[1] and set(pair) <= place.keys()}
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, axes = plt.subplots(figsize=(8.0, 7.4), layout="constrained")
        for number in range(len(names)):
            axes.axhline(number, color="0.93", lw=0.8, zorder=0)
            axes.axvline(number, color="0.93", lw=0.8, zorder=0)
        axes.plot([-0.5, len(names) - 0.5], [-0.5, len(names) - 0.5], color="0.6", lw=1.0, ls=":")
        rows, columns = [place[a] for a, _ in found], [place[b] for _, b in found]
        axes.scatter(columns, rows, s=[14 + 9 * count for count in found.values()], color=COLOURS[0], zorder=3)
        axes.set_xticks(range(len(names)), names, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        axes.xaxis.tick_top()
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_ylabel("imports")
        axes.set_title("is imported by", loc="left")
    return figure


if __name__ == "__main__":
    save(DOCS / "pictures" / "layers.png", draw)
