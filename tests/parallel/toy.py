"""A toy worker for the tests: what the trainer does with the parallel package, without a model.

    toy.py FOLDER [--steps N] [--fault KIND --on RANK --at STEP] [--mpi-log MODE] [--log-path FILE]

Each rank writes FOLDER/rank_R.json at its orderly end; rank 0 alone touches FOLDER/started.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

from lockstep.errors import UserError
from lockstep.observe.log import configure_logging
from lockstep.parallel import launchers
from lockstep.parallel.group import Group
from lockstep.parallel.opening import open_group, timeout_of
from lockstep.parallel.watch.faults import guarded

log = logging.getLogger("lockstep.toy")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fault")
    parser.add_argument("--on", type=int, default=-1)
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=1, help="the fault happens in the first so many attempts")
    parser.add_argument("--mpi-log", default="master")
    parser.add_argument("--log-path", type=Path)
    return parser.parse_args()


def fault(kind: str) -> None:
    if kind == "raise":
        raise RuntimeError("a toy error")
    if kind == "user":
        raise UserError("cannot be read", where="toy.npy", remedy="none")
    if kind == "hang":
        time.sleep(600)
    number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "int": signal.SIGINT}[kind]
    os.kill(os.getpid(), number)
    time.sleep(0.1)


def train(options: argparse.Namespace, group: Group, weight: float) -> dict[str, object]:
    import torch

    from lockstep.parallel.agreement import check_same_weights, share_weights
    from lockstep.parallel.gradients import GradientAverager

    torch.manual_seed(group.rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    share_weights(net.parameters(), group)
    averager = GradientAverager(net.parameters(), group, extras=1)
    loss = torch.zeros(1)
    for step in range(1, options.steps + 1):
        group.progress.at(step, "training")
        if group.context.attempt < options.attempts and options.on == group.rank and options.at == step:
            fault(options.fault)
        time.sleep(options.pause)
        averager.zero()
        samples = torch.full((2, 4), float(step * group.size + group.rank), dtype=torch.float64)
        own = net(samples).square().mean()
        own.backward()
        loss = averager.average(weight, own.detach())
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter -= 1e-5 * parameter.grad
        log.info("step %d on rank %d", step, group.rank)
    return {"hash": check_same_weights(net.parameters(), group), "loss": float(loss)}


def main() -> int:
    options = arguments()
    if options.fault == "start" and int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0"))) == options.on:
        return 7
    try:
        context = launchers.detect(os.environ)
        logs = configure_logging(logging.INFO, options.log_path, options.mpi_log, context)
        group = open_group(context, "cpu", timeout_of(os.environ))
    except UserError as error:
        log.error("%s", error)
        return 2
    with guarded(group):
        logs.join(group)
        if group.rank == 0:
            (options.folder / "started").touch()
        answer = train(options, group, 1.0)
        c = group.context
        answer |= {"launcher": c.launcher, "rank": c.rank, "size": c.size, "local_rank": c.local_rank}
        answer |= {"local_size": c.local_size, "nodes": c.nodes, "group": group.name}
        (options.folder / f"rank_{group.rank}.json").write_text(json.dumps(answer))
        group.close()
    logs.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
