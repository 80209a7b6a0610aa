"""Rows for docs/faults.md, kept by the tests that provoke the faults where LOCKSTEP_FAULT_ROWS names a file."""

from __future__ import annotations

import json
import os
from pathlib import Path


def keep_row(case: object, seconds: float, code: int, words: str, checkpoint: str) -> None:
    path = os.environ.get("LOCKSTEP_FAULT_ROWS")
    if path:
        words = words.partition("ERROR")[2] or words
        row = {"case": str(case), "seconds": round(seconds, 1), "code": code, "words": words, "checkpoint": checkpoint}
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")
