"""Tests that need DeePMD-kit beside this program, in one environment: `make test-kit` has one for them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if importlib.util.find_spec("deepmd") is None and not os.environ.get("LOCKSTEP_REQUIRE_KIT"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
