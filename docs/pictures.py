"""Makes the worked example of docs/observe.md: runs the water example in four situations, and draws where time goes.

    python docs/pictures.py       two minutes on two idle cores; needs mpirun, torchrun and taskset

Writes docs/pictures/budget.png and timeline.png, and the table between the marks in docs/observe.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.observe.budget import read_budget
from lockstep.observe.picture import STYLE, phase_colour, pyplot, save

DOCS = Path(__file__).resolve().parent
WATER = DOCS.parent / "examples" / "water"
BIN = Path(sys.executable).parent
STEPS, EVERY = 360, 60
SHOWN = (300, 303)
"""Steps of the timeline's picture: the first, and the one after the last."""
MARKS = ("<!-- pictures:begin -->", "<!-- pictures:end -->")


@dataclass(frozen=True)
class Situation:
    """A way to run the training.

    Attributes:
        disturbed: core on which another program computes all the while.
    """

    title: str
    launcher: str
    cores: str
    disturbed: str = ""


# Each rank on a core of its own, whatever starts it.
BOUND = "exec taskset -c ${PMI_RANK:-$LOCAL_RANK} dp train input.json --profile --timeline timeline.json"
SITUATIONS = {
    "one": Situation("one worker", "", "0"),
    "mpirun": Situation("mpirun, two workers", "mpirun -np 2", "0,1"),
    "torchrun": Situation("torchrun, two workers", "torchrun --standalone --nproc_per_node=2 --no-python", "0,1"),
    "disturbed": Situation("mpirun, rank 1 on a busy core", "mpirun -np 2", "0,1", disturbed="1"),
}


def main() -> None:
    pictures = DOCS / "pictures"
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folders = {key: run(situation, Path(name) / key) for key, situation in SITUATIONS.items()}
        budgets = {key: read_budget(folder / "budget.jsonl")[-1] for key, folder in folders.items()}
        events = read_timeline(folders["disturbed"] / "timeline.json")
    save(pictures / "budget.png", lambda: draw_budgets(budgets))
    save(pictures / "timeline.png", lambda: draw_timeline(events))
    replace_table(DOCS / "observe.md", table(budgets))


def run(situation: Situation, folder: Path) -> Path:
    """Train for a while in `folder`."""
    folder.mkdir()
    config = json.loads((WATER / "input.json").read_text())
    data = config["training"]["training_data"]
    data["systems"] = [str(WATER / system) for system in data["systems"]]
    config["training"].pop("validation_data", None)
    config["training"] |= {"numb_steps": STEPS, "disp_freq": EVERY, "save_freq": STEPS, "seed": 1}
    (folder / "input.json").write_text(json.dumps(config))
    environ = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = BOUND if situation.launcher else BOUND.replace("${PMI_RANK:-$LOCAL_RANK}", "0")
    words = ["taskset", "-c", situation.cores, *situation.launcher.split(), "sh", "-c", command]
    other = None
    if situation.disturbed:
        busy = [sys.executable, "-c", "while True: pass"]
        other = subprocess.Popen(["taskset", "-c", situation.disturbed, *busy])
    try:
        print(situation.title, flush=True)
        with (folder / "log").open("w") as log:
            subprocess.run(words, cwd=folder, env=environ, check=True, stdout=log, stderr=log)
    finally:
        if other is not None:
            other.kill()
            other.wait()
    return folder


def draw_budgets(budgets: dict[str, dict[str, Any]]) -> Any:
    """One bar of milliseconds for each situation."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.6, 2.9), layout="constrained")
        axis.grid(axis="y", visible=False)
        seen = set()
        for row, budget in enumerate(budgets.values()):
            left = 0.0
            for phase, share in budget["budget"].items():
                width = 1000 * share * budget["wall"] / budget["steps"]
                if width < 0.3:
                    continue
                label = None if phase in seen else phase
                axis.barh(row, width, left=left, color=phase_colour(phase), label=label, height=0.62)
                seen.add(phase)
                left += width
            axis.annotate(
                f"{budget['samples_per_s']:.1f} samples/s", (left, row), (5, 0), textcoords="offset points", va="center"
            )
        axis.set_yticks(range(len(budgets)), [SITUATIONS[key].title for key in budgets])
        axis.invert_yaxis()
        axis.margins(x=0.2)
        axis.set_xlabel("Milliseconds of a step, mean over the ranks")
        _legend(figure)
        return figure


Slice = tuple[str, float, float]


def read_timeline(path: Path) -> dict[int, list[Slice]]:
    """For each rank the (phase, beginning, milliseconds) of the steps that are shown."""
    text = path.read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    tracks = {(e["pid"], e["tid"]): e["args"]["name"].split()[0] for e in events if e.get("name") == "thread_name"}
    found: defaultdict[int, list[Slice]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and SHOWN[0] <= event.get("args", {}).get("step", -1) < SHOWN[1]:
            phase = "wait" if event["name"].startswith("wait") else tracks[event["pid"], event["tid"]]
            found[event["pid"]].append((phase, event["ts"] / 1000, event["dur"] / 1000))
    return dict(found)


def draw_timeline(ranks: dict[int, list[Slice]]) -> Any:
    """A row of coloured slices for each rank."""
    plt = pyplot()
    zero = min(began for slices in ranks.values() for _, began, _ in slices)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.6, 1.9), layout="constrained")
        axis.grid(axis="y", visible=False)
        seen = set()
        for rank, slices in sorted(ranks.items()):
            for phase, began, duration in slices:
                label = None if phase in seen else phase
                axis.barh(rank, duration, left=began - zero, color=phase_colour(phase), label=label, height=0.62)
                seen.add(phase)
        axis.set_yticks(sorted(ranks), [f"rank {rank}" for rank in sorted(ranks)])
        axis.invert_yaxis()
        axis.set_xlabel(f"Milliseconds, steps {SHOWN[0]} to {SHOWN[1] - 1}")
        _legend(figure)
        return figure


def _legend(figure: Any) -> None:
    figure.legend(frameon=False, ncols=8, loc="outside upper center", fontsize=9, columnspacing=1.2, handlelength=1.0)


def table(budgets: dict[str, dict[str, Any]]) -> str:
    """The same as numbers."""
    phases = ("geometry", "forward", "backward", "communication", "wait", "optimizer")
    head = ["", "ms a step", "samples/s", *(f"{phase} %" for phase in phases), "slowest rank"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for key, budget in budgets.items():
        shares = [f"{100 * budget['budget'][phase]:.1f}" for phase in phases]
        slowest = str(budget["slowest"]) if len(budget["per_rank_wait"]) > 1 else "-"
        step = 1000 * budget["wall"] / budget["steps"]
        rows.append([SITUATIONS[key].title, f"{step:.1f}", f"{budget['samples_per_s']:.1f}", *shares, slowest])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def replace_table(path: Path, text: str) -> None:
    before, _, rest = path.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
