"""The outcome of a scaling test: rows, cost model, predictions; as data for programs and tables for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UserError
from lockstep.scaling.cost import CostModel, fit, held_out_error
from lockstep.scaling.measure import Measurement
from lockstep.scaling.trial import Dealt, deal

FORMAT = "lockstep-scaling-1"
WEAK, STRONG = "weak", "strong"
FORMULA = "T(W) = k*(compute/S + sharing*(1-1/S)) + latency*log2(W) + transfer*2(W-1)/W + imbalance*sqrt(k)/S*m(W)"


@dataclass(frozen=True)
class Conditions:
    """Under which the runs were made.

    Attributes:
        threads: of each worker; 0 where the cores were shared out.
        places: cores, or GPUs, of this machine.
        load: of other programs, before the first run.
        steps: measured ones of each run, after those of `warmup`.
    """

    input: str
    mode: str
    launcher: str
    threads: int
    host: str
    device: str
    places: int
    load: float
    steps: int
    warmup: int
    date: str
    versions: dict[str, str]


def make_result(conditions: Conditions, rows: Sequence[Measurement], predict: Sequence[int]) -> dict[str, Any]:
    """Everything that `scaling.json` holds."""
    first = rows[0]
    return {
        "format": FORMAT,
        **asdict(conditions),
        "rows": [_row(row, first) for row in rows],
        "prediction": _prediction(rows, conditions.mode == STRONG, predict),
    }


def _row(row: Measurement, first: Measurement) -> dict[str, Any]:
    return {**asdict(row), **_rates(row.workers, row.samples_per_s, first)}


def _rates(workers: int, samples_per_s: float, first: Measurement) -> dict[str, float]:
    speed_up = samples_per_s / first.samples_per_s
    return {
        "samples_per_s": samples_per_s,
        "seconds_per_100_samples": 100.0 * workers / samples_per_s,
        "speed_up": speed_up,
        "efficiency": speed_up * first.workers / workers,
    }


def _prediction(rows: Sequence[Measurement], strong: bool, predict: Sequence[int]) -> dict[str, Any] | None:
    """The cost model and what it says; None where too few runs had cores enough to fit it."""
    points = [row.point for row in rows if not row.oversubscribed]
    if len(points) < 2:
        return None
    model = fit(points)
    return {
        "formula": FORMULA,
        "seconds": asdict(model),
        "fitted_to": [point.workers for point in points],
        "errors": [model.error(point) for point in points],
        "held_out_error": held_out_error(points),
        "rows": [_predicted(model, workers, rows[0], strong) for workers in predict],
    }


def _predicted(model: CostModel, workers: int, first: Measurement, strong: bool) -> dict[str, Any]:
    """A row for other workers, which share out the global batch of a strong test as measured runs do."""
    batch = first.workers * first.accumulate // first.per_frame
    dealt = deal(workers, batch, strong) if strong else Dealt(first.accumulate)
    seconds = model.seconds(workers, dealt.accumulate, dealt.per_frame)
    samples = first.samples_per_step / batch * workers * dealt.accumulate / dealt.per_frame
    return {
        "workers": workers,
        **asdict(dealt),
        "seconds_per_step": seconds,
        **_rates(workers, samples / seconds, first),
    }


def read_result(path: str | Path) -> dict[str, Any]:
    """The content of a `scaling.json`, or of the one in a folder."""
    file = Path(path)
    file = file / "scaling.json" if file.is_dir() else file
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read as the result of a scaling test: {error}", where=str(file)) from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise UserError(
            "is not the result of a scaling test of this version of the program",
            where=str(file),
            remedy="make it again with dp scaling",
        )
    return result
