"""What it costs to be observed: step times with each observer on and off, taking turns within one run.

    cd examples/copper
    python ../../benchmarks/observers.py input.json 1200
    mpirun -np 2 python ../../benchmarks/observers.py input.json 1200
    torchrun --nproc_per_node=2 --no-python python ../../benchmarks/observers.py input.json 1200

"control" is "off" once more: what differs there is noise. On a busy machine look at the processor times; they are
those of all threads of rank 0, so that what the observers' own threads do is in them. Lower quartiles are shown,
because other load on the machine only ever makes a step slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lockstep.config import load_input
from lockstep.observe.profile import Profile
from lockstep.observe.timeline import Timeline, Tracer
from lockstep.parallel import launchers
from lockstep.parallel.devices import place_group
from lockstep.parallel.group import Group
from lockstep.parallel.opening import open_group
from lockstep.tasks.energy.loss import Metrics
from lockstep.training import session
from lockstep.training.loop import Trainer
from lockstep.training.options import Options
from lockstep.training.scalars import NullScalars, TensorBoard

TURN = 6
SKIPPED = 1
MODES = ("off", "control", "profile", "timeline", "tensorboard")


class Bench:
    """Takes the place of a training's `step`: switches observers in turns, and times the steps."""

    def __init__(self, group: Group, profile: Profile, tracer: Tracer, board: TensorBoard | NullScalars) -> None:
        self.group, self.profile, self.tracer, self.board = group, profile, tracer, board
        self.wall: dict[str, list[float]] = {mode: [] for mode in MODES}
        self.cpu: dict[str, list[float]] = {mode: [] for mode in MODES}

    def step(self, real: Callable[[Trainer, int], Metrics], trainer: Trainer, number: int) -> Metrics:
        # The same order on all ranks, but not always the same mode after the same other one.
        mode = random.Random(number // TURN).choice(MODES)
        meters: dict[str, tuple[Any, ...]] = {"profile": (self.profile,), "timeline": (self.tracer,)}
        self.group.meters = meters.get(mode, ())
        self.group.phases.listeners = (self.tracer.phase,) if mode == "timeline" else ()
        wall, cpu = time.perf_counter(), time.process_time()
        metrics = real(trainer, number)
        if mode == "tensorboard":
            self.board.write(number, 0.1, metrics)
        if number % TURN >= SKIPPED and number > len(MODES) * TURN:
            self.wall[mode].append(time.perf_counter() - wall)
            self.cpu[mode].append(time.process_time() - cpu)
        return metrics

    def lines(self) -> list[str]:
        base = [_quartile(times["off"]) for times in (self.wall, self.cpu)]
        result = [f"{self.group.name}, {self.group.size} ranks; lower quartiles of {len(self.wall['off'])} steps each"]
        for mode in MODES:
            wall, cpu = (_quartile(times[mode]) for times in (self.wall, self.cpu))
            result.append(
                f"{mode:12s} {1e3 * wall:8.3f} ms ({100 * (wall / base[0] - 1):+.1f} %), "
                f"processor {1e3 * cpu:8.3f} ms ({100 * (cpu / base[1] - 1):+.1f} %)"
            )
        return result


def _quartile(times: list[float]) -> float:
    return statistics.quantiles(times, n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("steps", type=int)
    args = parser.parse_args()
    group = open_group(launchers.detect(os.environ))
    placement = place_group(group, "cpu")
    placement.apply()
    data = json.loads(Path(args.input).read_text())
    data["training"] |= {"numb_steps": args.steps, "disp_freq": args.steps, "save_freq": args.steps}
    with ExitStack() as stack:
        folder = Path(group.all_gather_object(tempfile.mkdtemp())[0])
        for section in ("training_data", "validation_data"):
            systems = data["training"][section]["systems"]
            data["training"][section]["systems"] = [str(Path(args.input).parent.resolve() / s) for s in systems]
        os.chdir(folder)
        mine = Path(f"input_{group.rank}.json")
        mine.write_text(json.dumps(data))
        profile = stack.enter_context(Profile(group, "bench", folder))
        tracer = stack.enter_context(Timeline(group, "timeline.json"))
        board = TensorBoard("log", 1) if group.rank == 0 else NullScalars()
        stack.callback(board.close)
        bench, real = Bench(group, profile, tracer, board), Trainer.step
        Trainer.step = lambda self, number: bench.step(real, self, number)  # type: ignore[method-assign]
        session.train(load_input(mine), mine.parent, Options(skip_neighbor_stat=True), group, placement)
        group.meters, group.phases.listeners = (), ()
    group.barrier()
    if group.rank == 0:
        shutil.rmtree(folder)
        print("\n".join(bench.lines()))
    group.close()


if __name__ == "__main__":
    main()
