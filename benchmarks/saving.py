"""How long a step waits for a checkpoint, with the water example.

    python benchmarks/saving.py [STEPS]

Trains with a checkpoint every fourth step and shows how long the steps with and without one took, and the pause in
which a step was held up by saving. `--slow SECONDS` lets every flush to the disk take that much longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lockstep.cli.main import main
from lockstep.training.loop import Trainer
from lockstep.training.outputs import Outputs

WATER = Path(__file__).resolve().parents[1] / "examples" / "water"
EVERY = 4


def timed(owner: type, name: str, times: dict[int, float], offset: int = 0) -> None:
    """Let `owner.name`, whose argument is a step, note how long it takes."""
    method = getattr(owner, name)

    def replaced(self: Any, step: int) -> Any:
        began = time.perf_counter()
        try:
            return method(self, step)
        finally:
            times[step + offset] = time.perf_counter() - began

    setattr(owner, name, replaced)


def slow_down(seconds: float) -> None:
    flush = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        flush(descriptor)

    os.fsync = slow


def run(steps: int) -> None:
    parser = json.loads((WATER / "input.json").read_text())
    parser["training"].update(numb_steps=steps, save_freq=EVERY, disp_freq=steps, max_ckpt_keep=2)
    pauses: dict[int, float] = {}
    updates: dict[int, float] = {}
    timed(Outputs, "save", pauses)
    timed(Trainer, "step", updates, offset=1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("data").symlink_to(WATER / "data")
        Path("input.json").write_text(json.dumps(parser))
        assert main(["train", "input.json", "-v", "ERROR"]) == 0
        size = next(Path().glob("model.ckpt-*")).stat().st_size
    warm = range(2 * EVERY, steps)
    saving = [pauses[step] for step in warm if step % EVERY == 0]
    after = [updates[step] for step in warm if step % EVERY == 1]
    other = [updates[step] for step in warm if step % EVERY not in (0, 1)]
    print(f"checkpoint of {size / 1e6:.1f} MB, {len(saving)} saved")
    print(
        f"pause of a step that saves: median {1e3 * statistics.median(saving):.1f} ms, most {1e3 * max(saving):.1f} ms"
    )
    print(f"next step {1e3 * statistics.median(after):.1f} ms, others {1e3 * statistics.median(other):.1f} ms")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("steps", type=int, nargs="?", default=160)
    arguments.add_argument("--slow", type=float, default=0.0)
    given = arguments.parse_args()
    if given.slow:
        slow_down(given.slow)
    run(given.steps)
