"""The input of one measured run: the user's training, cut short, with nothing that disturbs the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config import Input, parse_input
from lockstep.config.training import DataConfig

_DISPLAYS, _WARMUP_DISPLAYS = 10, 3


@dataclass(frozen=True)
class Length:
    """How long a run is: intervals of equal length, the first of which are not counted.

    A run begins with work that does not come again: compiling, reading, the first neighbour lists.
    """

    interval: int

    @classmethod
    def of(cls, steps: int) -> Length:
        """The length with at least `steps` counted steps."""
        return cls(math.ceil(steps / _DISPLAYS))

    @property
    def warmup(self) -> int:
        return self.interval * _WARMUP_DISPLAYS

    @property
    def counted(self) -> int:
        return self.interval * _DISPLAYS

    @property
    def total(self) -> int:
        return self.warmup + self.counted


@dataclass(frozen=True)
class Dealt:
    """How the global batch is dealt out: micro-batches a worker and step, and workers that share each of them."""

    accumulate: int
    per_frame: int = 1


def deal(workers: int, acc_freq: int, strong: bool) -> Dealt:
    """The same number of micro-batches for every worker in a weak test.

    In a strong one all runs have the global batch of a single worker: its micro-batches are dealt out as far as they
    go, and workers beyond that share the atoms of each.
    """
    if not strong:
        return Dealt(acc_freq)
    apart = math.gcd(workers, acc_freq)
    return Dealt(acc_freq // apart, workers // apart)


def trial_input(config: Input, length: Length, dealt: Dealt) -> dict[str, Any]:
    """The input file of a run, as plain data; it writes only into the folder it runs in."""
    data = config.dump()
    data["training"] |= {
        "training_data": _absolute(config.training.training_data),
        "validation_data": None,
        "numb_steps": length.total,
        "numb_epoch": None,
        "acc_freq": dealt.accumulate,
        "ranks_per_frame": dealt.per_frame,
        "scale_steps_by_worker": False,
        "stat_file": None,
        "stat_file_mode": "update",
        "disp_file": "lcurve.out",
        "disp_training": True,
        "disp_freq": length.interval,
        "time_training": True,
        "save_freq": length.total,
        "save_ckpt": "model.ckpt",
        "save_dir": None,
        "max_ckpt_keep": 1,
        "tensorboard": False,
        # Absent in input files that know nothing of timelines.
        **({"profiling": False} if "profiling" in data["training"] else {}),
    }
    # A rate that grew with the workers could make the longest run diverge, and no clock needs it.
    data["learning_rate"] |= {"scale_by_worker": "none", "warmup_steps": 0, "warmup_ratio": None}
    return parse_input(data).dump()


def _absolute(data: DataConfig) -> dict[str, Any]:
    """The section with paths that hold in every folder: relative ones start, as always, from the current folder."""
    given = [data.systems] if isinstance(data.systems, str) else list(data.systems)
    section = data.model_dump(mode="json")
    return {**section, "systems": [str(Path(system).absolute()) for system in given]}
