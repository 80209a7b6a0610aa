"""The "Summary of the training" in the log, with the lines that users' scripts look for."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from lockstep.parallel.context import WorkerContext
from lockstep.parallel.devices import Placement

_WIDTH = 65
_LABEL = 22


def training_summary(context: WorkerContext, placement: Placement, environ: Mapping[str, str]) -> list[str]:
    """One string for each line of the log."""
    if context.size > 1:
        lines = [
            "distributed",
            _line("world size", context.size),
            _line("my rank", context.rank),
            _line("node list", list(context.nodes)),
        ]
    else:
        lines = ["serial"]
    lines += [
        _line("running on", socket.gethostname()),
        _line("computing device", _device(placement)),
        _line("CUDA_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES", "unset")),
        _line("Count of visible GPU", placement.visible_gpus),
        _line("num_intra_threads", placement.intra_threads),
        _line("num_inter_threads", placement.inter_threads),
    ]
    return ["---Summary of the training".ljust(_WIDTH, "-"), *lines, "-" * _WIDTH]


def _line(label: str, value: object) -> str:
    return f"{label + ':':<{_LABEL}}{value}"


def _device(placement: Placement) -> str:
    kind, _, number = placement.device.partition(":")
    return f"{'gpu' if kind == 'cuda' else kind}:{number or 0}"
