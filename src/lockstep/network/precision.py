"""Names of floating-point precisions in input files."""

from __future__ import annotations

import torch

_DTYPES = {"default": torch.float64, "float64": torch.float64, "float32": torch.float32}


def torch_dtype(precision: str) -> torch.dtype:
    return _DTYPES[precision]
