"""Exchanges between ranks: all-reduce times, and one flat all-reduce against DistributedDataParallel.

    OMP_NUM_THREADS=1 mpirun -np 2 python benchmarks/exchange.py
    OMP_NUM_THREADS=1 torchrun --nproc_per_node=2 benchmarks/exchange.py
    OMP_NUM_THREADS=1 LOCKSTEP_GROUP=horovod torchrun --nproc_per_node=2 benchmarks/exchange.py
    OMP_NUM_THREADS=1 horovodrun -np 2 python benchmarks/exchange.py

Best and median of the repetitions, on rank 0. DDP needs a torch group: it is left out under mpirun. On one node gloo's
large messages go through shared memory; what its sockets would take is shown beside it.
"""

from __future__ import annotations

import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable

import torch

from lockstep.parallel import launchers
from lockstep.parallel.gradients import GradientAverager
from lockstep.parallel.group import Group
from lockstep.parallel.opening import open_group


def compare(actions: dict[str, Callable[[], object]], group: Group, repeat: int) -> dict[str, str]:
    """Times of several actions, taken in turns so that other load on the machine hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeat):
        for name, action in actions.items():
            group.barrier()
            start = time.perf_counter()
            action()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {n: f"best {min(t):9.1f} us   median {statistics.median(t):9.1f} us" for n, t in times.items()}


def burst(group: Group, tensor: torch.Tensor, count: int = 100) -> str:
    """Many exchanges in a row: what one costs when the ranks are already together."""
    best = float("inf")
    for _ in range(20):
        group.barrier()
        start = time.perf_counter()
        for _ in range(count):
            group.all_reduce(tensor)
        best = min(best, (time.perf_counter() - start) / count)
    return f"best {best * 1e6:9.1f} us each of {count}"


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    widths = [400, 500, 500, 100, 1]
    layers: list[torch.nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inner, outer), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1]).double()


def steps(group: Group) -> dict[str, Callable[[], object]]:
    samples = torch.randn(64, 400, dtype=torch.float64)
    flat_net, alone_net = network(), network()
    averager = GradientAverager(flat_net.parameters(), group, extras=4)
    extras = torch.zeros(4, dtype=torch.float64)

    def alone() -> None:
        alone_net.zero_grad()
        alone_net(samples).square().mean().backward()

    def flat() -> None:
        averager.zero()
        flat_net(samples).square().mean().backward()
        averager.average(1.0, extras)

    variants: dict[str, Callable[[], object]] = {"step, no exchange": alone, "step, flat": flat}
    if group.name in ("gloo", "NCCL"):
        ddp_net = torch.nn.parallel.DistributedDataParallel(network(), static_graph=True, gradient_as_bucket_view=True)

        def ddp() -> None:
            ddp_net.zero_grad()
            ddp_net(samples).square().mean().backward()

        def ddp_and_metrics() -> None:
            ddp()
            group.all_reduce(extras)

        variants |= {"step, DDP": ddp, "step, DDP + metrics": ddp_and_metrics}
    return variants


def show(group: Group, lines: dict[str, str]) -> None:
    if group.rank == 0:
        for name, line in lines.items():
            print(f"{group.name:12} {name:26} {line}")


def main() -> None:
    torch.set_num_threads(1)
    group = open_group(launchers.detect(os.environ), "cpu")
    for count, repeat in ((1, 500), (1 << 17, 100), (1 << 20, 50)):
        tensor = torch.zeros(count, dtype=torch.float64)
        exchange: dict[str, Callable[[], object]] = {
            f"all_reduce {count * 8} B": functools.partial(group.all_reduce, tensor)
        }
        if group.name == "gloo":
            exchange[f"sockets, {count * 8} B"] = functools.partial(torch.distributed.all_reduce, tensor)
        show(group, compare(exchange, group, repeat))
    show(group, {"all_reduce 8 B in a row": burst(group, torch.zeros(1, dtype=torch.float64))})
    show(group, compare(steps(group), group, 100))
    group.close()


if __name__ == "__main__":
    main()
