"""How many threads a rank computes with, where nobody has said: as many as make a step fastest.

More threads than a step has work for make it slower. So a step's forward and backward pass is tried on a few numbers of
threads before training begins, and leaves no trace. The number goes into the checkpoints: sums over another number of
threads differ in their last bits, and a restart goes on bit for bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lockstep.checkpoint.format import Checkpoint
from lockstep.data import DpLoaderSet, Plan
from lockstep.parallel.devices import Placement
from lockstep.parallel.group import Group
from lockstep.parallel.mesh import Mesh
from lockstep.tasks import Task
from lockstep.training.course import Course

log = logging.getLogger(__name__)

SECONDS = 0.6
"""What the trial may take, about; two passes for each number of threads at the least."""
TOO_LONG = 2.0
"""Seconds of a pass from which on all cores are taken untried: there is work enough for them."""
WORTH_IT = 0.95
"""More threads must take less than this share of the time of fewer."""


def settle_threads(
    task: Task, plan: Plan, course: Course, checkpoint: Checkpoint | None, mesh: Mesh, placement: Placement
) -> Placement:
    """The placement with the number of threads that serves best. All ranks call it, and all get the same number."""
    ranks = mesh.world.all_gather_object((placement.automatic, placement.cores))
    most = min(cores for _, cores in ranks)
    saved = checkpoint.info.get("threads") if checkpoint else None
    if most == 1 or not all(automatic for automatic, _ in ranks):
        if saved not in (None, placement.intra_threads):
            log.info("threads: %s, and %s in the run before: last digits may differ", placement.intra_threads, saved)
        return placement
    if isinstance(saved, int) and 1 <= saved <= most:
        log.info("threads: %d, as the checkpoint has it", saved)
        return _applied(placement, saved)
    with mesh.world.progress.allow(math.inf), _without_trace(task):
        times = measure(_pass_of(task, plan, course, mesh), _numbers(most), mesh.world)
    best = choose(times) if times else most
    found = ", ".join(f"{number}: {1e3 * seconds:.3g} ms" for number, seconds in times.items())
    log.info("threads: %d of %d cores (%s)", best, most, found or "a step is long")
    return _applied(placement, best)


def measure(run: Callable[[], None], numbers: Sequence[int], group: Group) -> dict[int, float]:
    """Seconds of a pass on each number of threads, the mean over the ranks; nothing where one takes very long."""
    torch.set_num_threads(numbers[-1])
    # The first one compiles loops and finds memory.
    run()
    once = _mean(group, [_timed(run)])[0]
    if once > TOO_LONG:
        return {}
    rounds = min(5, max(1, int(SECONDS / (2 * once * len(numbers)))))
    times: dict[int, list[float]] = {number: [] for number in numbers}
    for _ in range(rounds):
        for number, taken in times.items():
            torch.set_num_threads(number)
            run()
            taken.append(_timed(run))
    return dict(zip(numbers, _mean(group, [min(taken) for taken in times.values()]), strict=True))


def choose(times: dict[int, float]) -> int:
    """The number that is fastest, or fewer where they are nearly as fast."""
    best = min(times)
    for number in sorted(times):
        if times[number] < WORTH_IT * times[best]:
            best = number
    return best


def _numbers(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _mean(group: Group, seconds: list[float]) -> list[float]:
    found: list[float] = (group.sum(torch.tensor(seconds, dtype=torch.float64)) / group.size).tolist()
    return found


def _pass_of(task: Task, plan: Plan, course: Course, mesh: Mesh) -> Callable[[], None]:
    """A pass over the first micro-batch to come."""
    position, data = course.stream.position, mesh.data
    with DpLoaderSet(
        plan.dataset,
        course.stream,
        start=position,
        rank=data.rank,
        size=data.size,
        prepare=task.prepare,
        workers=0,
    ) as loader:
        _, sample = next(loader)
    lr = course.schedule.lr(course.first_step)

    def run() -> None:
        task.loss(sample, lr).total.backward()

    return run


@contextmanager
def _without_trace(task: Task) -> Iterator[None]:
    """Weights, constants, gradients and random numbers are as before afterwards."""
    state = task.module.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(before[name])
    task.module.zero_grad(set_to_none=True)


def _applied(placement: Placement, threads: int) -> Placement:
    torch.set_num_threads(threads)
    return placement.with_threads(threads)
