"""The real DeePMD-kit, in a venv of its own: its dependencies must never mix with those of the program tested."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]

Peer = Callable[..., str]


@pytest.fixture(scope="session")
def peer() -> Peer:
    """Runs a script of this folder with DeePMD-kit's Python; gives what it printed."""
    venv = Path(os.environ.get("LOCKSTEP_PEER_VENV", REPOSITORY / ".venv-deepmd"))
    python = venv / "bin" / "python"
    if not python.is_file():
        reason = f"DeePMD-kit's venv is not at {venv}: `make test` creates it, LOCKSTEP_PEER_VENV names another"
        if os.environ.get("CI") or os.environ.get("LOCKSTEP_REQUIRE_PEER"):
            pytest.fail(reason)
        pytest.skip(reason)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(script: str, *arguments: str | Path) -> str:
        command = [str(python), str(HERE / script), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
