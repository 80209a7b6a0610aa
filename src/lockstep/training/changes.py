"""What a run that goes on does otherwise than the run before it: refused where that cannot be, told where it can."""

from __future__ import annotations

import logging
from typing import Any

from lockstep import products
from lockstep.checkpoint.format import Checkpoint
from lockstep.config import AnyInput
from lockstep.errors import InputError

log = logging.getLogger(__name__)

SAME_STATE = frozenset({"Adam", "AdamW"})
"""Optimizers that remember the same."""
SHAPES = ("min_side", "max_side", "max_block")
"""Keys that say of which matrices, and in which pieces, SOAP remembers anything."""


def check_changes(config: AnyInput, checkpoint: Checkpoint | None) -> None:
    """Compare the input, and what computes, with those of the checkpoint."""
    if checkpoint is None:
        return
    before = checkpoint.info.get("input", {}).get("optimizer")
    if isinstance(before, dict):
        _check_optimizer(config.optimizer.model_dump(mode="json"), before, checkpoint)
    maker = checkpoint.info.get("products")
    if maker not in (None, products.maker()):
        log.info("matrix products: by %s, and by %s in the run before: last digits may differ", products.maker(), maker)


def _check_optimizer(now: dict[str, Any], before: dict[str, Any], checkpoint: Checkpoint) -> None:
    kinds = {now["type"], before.get("type")}
    shapes = [key for key in SHAPES if key in now and now[key] != before.get(key, now[key])]
    if len(kinds) > 1 and not kinds <= SAME_STATE:
        raise _unlike("type", now["type"], before.get("type"), checkpoint)
    if shapes:
        raise _unlike(shapes[0], now[shapes[0]], before[shapes[0]], checkpoint)
    for key in sorted(now.keys() & before.keys()):
        if now[key] != before[key]:
            log.info("optimizer.%s = %s, and %s in the run before", key, now[key], before[key])


def _unlike(key: str, now: object, before: object, checkpoint: Checkpoint) -> InputError:
    return InputError(
        f"the checkpoint was written with {before}, and what the optimizer remembers there is of no use to this one",
        where=f"optimizer.{key}",
        value=now,
        remedy=f"put {before} back to go on, or begin anew from its weights: --init-model {checkpoint.path}",
    )
