"""Tests of what is exchanged between ranks borrow the helpers of tests/parallel."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "parallel"))
