"""`sys_probs` and `auto_prob`: how often each system is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lockstep.errors import InputError

_ROUNDING = 1e-8


def system_probabilities(
    counts: np.ndarray,
    sys_probs: Sequence[float] | None,
    auto_prob: str,
    where: str = "training.training_data",
) -> np.ndarray:
    """Probability of each system; `sys_probs` wins over `auto_prob`.

    Args:
        counts: micro-batches in a pass over each system; sizes are measured in them, as DeePMD-kit does.
        sys_probs: one entry a system; those below zero share what is left in proportion to their counts.
        auto_prob: "prob_uniform", "prob_sys_size", or "prob_sys_size;start:end:weight;..." (end excluded).
        where: the section of the input file, for messages.
    """
    if sys_probs is not None:
        return _explicit(counts, np.asarray(sys_probs, dtype=np.float64), f"{where}.sys_probs")
    if auto_prob == "prob_uniform":
        return np.full(len(counts), 1.0 / len(counts))
    if auto_prob == "prob_sys_size":
        return counts / counts.sum()
    if auto_prob.startswith("prob_sys_size;"):
        return _blocks(counts, auto_prob, f"{where}.auto_prob")
    raise InputError(
        'expected "prob_uniform", "prob_sys_size" or "prob_sys_size;start:end:weight;..."',
        where=f"{where}.auto_prob",
        value=auto_prob,
        remedy='"prob_sys_size" draws large systems more often, "prob_uniform" all equally often',
    )


def micro_batches_per_epoch(counts: np.ndarray, probabilities: np.ndarray) -> int:
    """Micro-batches after which every system is expected to have had a full pass.

    It is ceil(max(count / probability)) over the systems, DeePMD-kit's measure for `numb_epoch`; systems that
    are never drawn do not count.
    """
    drawn = probabilities > 0
    return _ceil(float(np.max(counts[drawn] / probabilities[drawn])))


def steps_for_epochs(epochs: float, per_epoch: int, ranks: int) -> int:
    """Steps for a number of epochs, when each step takes one micro-batch a rank."""
    return _ceil(epochs * per_epoch / ranks)


def _ceil(value: float) -> int:
    """Next integer, but not the one above an integer missed by rounding (1.1 epochs of 10 are 11, not 12)."""
    return math.ceil(value * (1 - 1e-12))


def _explicit(counts: np.ndarray, given: np.ndarray, where: str) -> np.ndarray:
    if len(given) != len(counts):
        raise InputError(
            f"the list has {len(given)} entries for {len(counts)} systems",
            where=where,
            value=given.tolist(),
            remedy="give one entry for each system found (a folder may hold several)",
        )
    if not np.isfinite(given).all():
        raise InputError("an entry is not a number", where=where, value=given.tolist())
    fixed = given >= 0
    rest = 1.0 - given[fixed].sum()
    if rest < -_ROUNDING:
        raise InputError(
            f"the probabilities add up to {given[fixed].sum():.6g}, more than 1",
            where=where,
            value=given.tolist(),
            remedy="make them add up to 1; a negative entry stands for a share of what is left",
        )
    if fixed.all() and rest > _ROUNDING:
        raise InputError(
            f"the probabilities add up to {given.sum():.6g}, less than 1",
            where=where,
            value=given.tolist(),
            remedy="make them add up to 1, or make one of them negative: it then takes what is left",
        )
    result = np.where(fixed, given, 0.0)
    if not fixed.all():
        result[~fixed] = max(rest, 0.0) * counts[~fixed] / counts[~fixed].sum()
    return result / result.sum()


def _blocks(counts: np.ndarray, auto_prob: str, where: str) -> np.ndarray:
    result = np.zeros(len(counts))
    seen = np.zeros(len(counts), dtype=bool)
    for block in auto_prob.split(";")[1:]:
        start, end, weight = _block(block, len(counts), auto_prob, where)
        if seen[start:end].any():
            raise InputError(f"block {block!r} overlaps another one", where=where, value=auto_prob)
        seen[start:end] = True
        result[start:end] = weight * counts[start:end] / counts[start:end].sum()
    if result.sum() <= 0:
        raise InputError(
            "no block has a weight above zero",
            where=where,
            value=auto_prob,
            remedy="give one of them a weight",
        )
    return result / result.sum()


def _block(block: str, n_systems: int, auto_prob: str, where: str) -> tuple[int, int, float]:
    try:
        first, last, share = block.split(":")
        start, end, weight = int(first), int(last), float(share)
    except ValueError:
        raise InputError(
            f"block {block!r} is not start:end:weight",
            where=where,
            value=auto_prob,
            remedy='for example "prob_sys_size;0:2:0.3;2:5:0.7"',
        ) from None
    if not 0 <= start < end <= n_systems:
        raise InputError(
            f"block {block!r} does not name systems: they are numbered 0 to {n_systems - 1}, end excluded",
            where=where,
            value=auto_prob,
            remedy=f"keep 0 <= start < end <= {n_systems}",
        )
    if not (weight >= 0 and math.isfinite(weight)):
        raise InputError(f"the weight of block {block!r} is not a number of at least 0", where=where, value=auto_prob)
    return start, end, weight
