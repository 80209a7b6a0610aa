"""`dp`, its steps slowed down, that keeps a record of them: TRACE names the folder.

A line for each step of this rank: when this process began, step, rank, number of ranks, learning rate, and a sum over
the coordinates of the micro-batch, by which it is known again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from lockstep.cli.main import main
from lockstep.training.loop import Samples, Trainer

BEGAN = time.time()
PAUSE = float(os.environ.get("PAUSE", "0.1"))


def recorded(samples: Samples, seen: list[float]) -> Samples:
    for batch, sample in samples:
        seen.append(float(batch.coord.sum()))
        yield batch, sample


def keep_record() -> None:
    run, step = Trainer.run, Trainer.step
    seen: list[float] = []

    def recorded_run(self: Trainer) -> None:
        self.samples = recorded(self.samples, seen)
        run(self)

    def recorded_step(self: Trainer, number: int) -> Any:
        time.sleep(PAUSE)
        metrics = step(self, number)
        line = (BEGAN, number, self.group.rank, self.group.size, self.schedule.lr(number), seen[-1])
        with Path(os.environ["TRACE"], f"{self.group.rank}-{os.getpid()}").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return metrics

    Trainer.run, Trainer.step = recorded_run, recorded_step  # type: ignore[method-assign]


if __name__ == "__main__":
    keep_record()
    sys.exit(main())
