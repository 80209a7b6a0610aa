"""The command line as a function: run it, and look at what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Result:
    """The exit code and the lines on standard error and standard output."""

    code: int
    err: str
    out: str

    def number(self, title: str) -> float:
        """The last number that the report gives under a title."""
        found = re.findall(rf"INFO +{re.escape(title)} *: (\S+)", self.err)
        assert found, self.err
        return float(found[-1])


@pytest.fixture
def dp(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`dp(...)` in an empty folder."""
    from lockstep.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:
            code = int(ending.code or 0)
        captured = capfd.readouterr()
        return Result(code, captured.err, captured.out)

    return run
