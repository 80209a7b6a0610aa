"""Options that embedding nets and fitting nets have in common."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lockstep.config.section import Width, wrong

ACTIVATIONS = (
    "tanh",
    "relu",
    "relu6",
    "softplus",
    "sigmoid",
    "gelu",
    "gelu_tf",
    "silu",
    "silut",
    "none",
    "linear",
)
_LATER_PRECISIONS = ("float16", "bfloat16")


def _activation(value: Any) -> Any:
    name = value.lower() if isinstance(value, str) else value
    if name in ACTIVATIONS or (isinstance(name, str) and re.fullmatch(r"silut:\d{1,9}(\.\d*)?", name)):
        return name
    raise wrong(f"expected one of {', '.join(ACTIVATIONS)}, or silut:N with a number N")


def _precision(value: Any) -> Any:
    if value in _LATER_PRECISIONS:
        raise wrong("not supported yet", "use float32, float64 or default (float64)")
    return value


Activation = Annotated[str, BeforeValidator(_activation)]
Precision = Annotated[Literal["default", "float32", "float64"], BeforeValidator(_precision)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1, max_length=1000)]
MaybeNoWidths = Annotated[tuple[Width, ...], Field(max_length=1000)]
