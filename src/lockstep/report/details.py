"""Predictions against labels, from the detail files in a folder."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UserError
from lockstep.observe.parity import SUFFIXES, is_detail_file, read_parity, suffix_of, thin
from lockstep.report.curves import numbers
from lockstep.report.folder import RunFolder

_POINTS = 4000
_SAME = {".e.out": ".e_peratom.out", ".v.out": ".v_peratom.out", ".s.out": ".v_peratom.out"}
"""Detail files that say the same as others, in other units."""


def parity_data(folder: RunFolder) -> list[dict[str, Any]]:
    """The detail files of `dp test`; of a quantity in several units only the first."""
    panels: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    paths = [path for path in folder.files() if is_detail_file(path)]
    for path in sorted(paths, key=lambda path: list(SUFFIXES).index(str(suffix_of(path)))):
        suffix = str(suffix_of(path))
        prefix, quantity = path.name.removesuffix(suffix), _SAME.get(suffix, suffix)
        if (prefix, quantity) not in seen:
            seen.add((prefix, quantity))
            with suppress(UserError):
                panels += filter(None, [_panel(path, path.stat().st_mtime_ns)])
    return panels


@lru_cache(maxsize=32)
def _panel(path: Path, written: int) -> dict[str, Any] | None:
    """Kept as long as the file is what it was: a live view reads again every few seconds, and forces are many."""
    parity = read_parity(path)
    if parity is None:
        return None
    chosen = thin(parity.label, parity.predicted, _POINTS)
    order = chosen[np.argsort(parity.label[chosen], kind="stable")]
    return {
        "title": parity.quantity,
        "name": parity.name,
        "unit": parity.unit,
        "label": numbers(parity.label[order]),
        "predicted": numbers(parity.predicted[order]),
        "count": len(parity.label),
        "rmse": parity.rmse,
        "mae": parity.mae,
    }
