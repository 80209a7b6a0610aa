"""Writes docs/models.md: what becomes of every training input in DeePMD-kit's folder of examples.

    python docs/models.py EXAMPLES [PATTERN] > docs/models.md

Every input is copied, cut to two steps, and trained with plain `dp train` in a folder beside its own, so that paths to
data hold. Models are made small, for time: fewer layers, narrower nets, fewer slots for neighbours. Nothing else of an
input is changed. What ends in a traceback, or takes too long, is named so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 240.0
SMALL = {
    "nlayers": 1,
    "n_blocks": 1,
    "attn_layer": 1,
    "attn": 8,
    "attn_hidden": 8,
    "g1_dim": 8,
    "g2_dim": 8,
    "n_dim": 16,
    "e_dim": 8,
    "a_dim": 8,
    "channels": 8,
    "lmax": 1,
    "n_radial": 4,
    "axis_neuron": 2,
}
HEADER = """# Models

What becomes of every training input in the folder `examples` of DeePMD-kit's repository, with `pip install
'lockstep-dp[deepmd]'` and plain `dp train`, two steps each. `make models EXAMPLES=...` wrote this page.

- **native**: this program's own networks, at spline speed;
- **DeePMD-kit**: built by DeePMD-kit's PyTorch classes, trained in this program's loop: its stream, launchers,
  averaging, restart, watch, profile and report;
- **handed over**: done by DeePMD-kit itself, from the same command;
- **refused**: with the reason, in one screen, before anything is touched.

"""


@dataclass(frozen=True)
class Row:
    """What became of one input."""

    name: str
    outcome: str
    remark: str


def main(examples: Path, pattern: str = "") -> None:
    rows = [tried(path, examples) for path in inputs(examples) if re.search(pattern, str(path.relative_to(examples)))]
    counts = Counter(row.outcome for row in rows)
    trained = counts["native"] + counts["DeePMD-kit"]
    print(
        HEADER
        + f"{trained} of {len(rows)} train: {counts['native']} native, {counts['DeePMD-kit']} through DeePMD-kit."
    )
    print("\n| input | | what trains, or why not |\n| --- | --- | --- |")
    for row in rows:
        print(f"| `{row.name}` | {row.outcome} | {row.remark} |")


def inputs(examples: Path) -> list[Path]:
    """The files with a model and a run in them."""
    found = []
    for path in sorted(examples.rglob("*.json")):
        content = path.read_text(encoding="utf-8")
        if '"training"' in content and path.name not in ("out.json", "lockstep-models.json"):
            found.append(path)
    return found


def tried(path: Path, examples: Path) -> Row:
    """Two steps of an input, in its own folder."""
    name = str(path.relative_to(examples))
    print(name, file=sys.stderr, end=" ", flush=True)
    data = shortened(json.loads(path.read_text(encoding="utf-8")))
    copy = path.with_name("lockstep-models.json")
    copy.write_text(json.dumps(data), encoding="utf-8")
    before = {each.name for each in path.parent.iterdir()}
    try:
        done = subprocess.run(
            ["dp", "train", copy.name],
            cwd=path.parent,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=environment(),
        )
        row = Row(name, *judged(done))
    except subprocess.TimeoutExpired:
        row = Row(name, "too slow", f"two steps were not done in {LIMIT:.0f} s")
    finally:
        copy.unlink()
        for left in {each.name for each in path.parent.iterdir()} - before:
            subprocess.run(["rm", "-rf", str(path.parent / left)], check=True)
    print(row.outcome, row.remark, file=sys.stderr, flush=True)
    return row


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}


def judged(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The outcome of a run by what it printed."""
    text = done.stderr
    if done.returncode == 0:
        found = re.search(r"model: (DeePMD-kit \S+ .+)", text)
        return ("DeePMD-kit", found[1].partition("'s ")[2]) if found else ("native", "")
    if "Traceback" in text:
        return "**traceback**", f"`{text.strip().splitlines()[-1][:160]}`"
    message = text[text.rfind("error: ") + 7 :].strip() if "error: " in text else text.strip()[-200:]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "refused", " ".join(lines[:3]).replace("|", "\\\\|")[:400]


def shortened(data: dict[str, Any]) -> dict[str, Any]:
    """The input with two steps, one frame a batch, and a small model."""
    training = data["training"]
    for key in ("numb_steps", "stop_batch", "num_step", "num_steps", "numb_step", "num_epoch", "numb_epoch"):
        training.pop(key, None)
    if "num_epoch_dict" in training:
        training["num_epoch_dict"] = dict.fromkeys(training["num_epoch_dict"], 0.01)
    else:
        training["numb_steps"] = 2
    training |= {"disp_freq": 1, "save_freq": 2}
    rate = data.get("learning_rate", {})
    for key in ("warmup_steps", "decay_steps"):
        if rate.get(key, 0) > 1:
            rate[key] = 1
    if isinstance(data.get("model"), dict):
        data["model"] = smaller(data["model"])
    return data


def smaller(node: Any, key: str = "") -> Any:
    """A section with small nets, whatever its model is."""
    if isinstance(node, dict):
        return {name: smaller(value, name) for name, value in node.items()}
    if isinstance(node, list):
        if key.endswith("neuron") and node and all(isinstance(width, int) for width in node):
            return [min(width, 2 ** (2 + place)) for place, width in enumerate(node)] if len(node) > 1 else [8]
        return [smaller(value) for value in node]
    if key in SMALL and isinstance(node, int) and not isinstance(node, bool):
        return min(node, SMALL[key])
    return node


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:3])
