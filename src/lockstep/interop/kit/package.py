"""DeePMD-kit as a Python package: whether it is there, in a version that is known, and how it is imported."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata

import torch

from lockstep.device import current_gpu
from lockstep.errors import UserError
from lockstep.interop.kit.operators import leave_out_operators

log = logging.getLogger(__name__)

DISTRIBUTION = "deepmd-kit"
KNOWN = "3.2"
"""The minor version whose classes are called here; their signatures change from one to the next."""
PIP = "pip install 'lockstep-dp[deepmd]'"


def version() -> str | None:
    """The version of DeePMD-kit in this environment; None where there is none."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def require(what: str, where: str) -> str:
    """The version of DeePMD-kit, which `what` needs; stops where it is missing or of another minor version."""
    found = version()
    if found is None or importlib.util.find_spec("deepmd") is None:
        raise UserError(
            f"{what} is trained with DeePMD-kit's classes, and DeePMD-kit is not installed", where=where, remedy=PIP
        )
    if found.split(".")[:2] != KNOWN.split("."):
        raise UserError(
            f"{what} is trained with the classes of DeePMD-kit {KNOWN}, and version {found} is installed",
            where=where,
            remedy=PIP,
        )
    return found


@cache
def load() -> None:
    """Import DeePMD-kit's PyTorch backend, for the device and the threads that this process already has."""
    threads = torch.get_num_threads()
    # Its own default, said aloud: it warns where the variable is missing.
    os.environ.setdefault("DP_INFER_BATCH_SIZE", "1024")
    built_for = leave_out_operators()
    if built_for is not None:
        log.info(
            "DeePMD-kit's operator library is left out: it was built for torch %s, and this is %s. "
            "Training does not need it.",
            *(built_for, torch.__version__),
        )
    with _environment(_device_variables()), _quiet():
        import deepmd.pt.train.training  # noqa: F401
    torch.set_num_threads(threads)
    _join_log()


def _device_variables() -> dict[str, str]:
    """What fixes the device of `deepmd.pt` when it is imported."""
    gpu = current_gpu()
    return {"DEVICE": "cpu"} if gpu is None else {"LOCAL_RANK": str(gpu)}


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice that the import logs: threads are divided among the ranks already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _join_log() -> None:
    """DeePMD-kit's warnings go where this program's messages go."""
    theirs, ours = logging.getLogger("deepmd"), logging.getLogger("lockstep")
    theirs.handlers, theirs.propagate = ours.handlers, False
    theirs.setLevel(max(ours.getEffectiveLevel(), logging.WARNING))
