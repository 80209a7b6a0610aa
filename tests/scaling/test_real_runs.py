"""`dp scaling` with real launchers and a real training."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lockstep.cli.main import main
from runs import tiny_input, tiny_system, write_input

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_two_workers_are_measured(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if launcher == "mpirun" and not shutil.which(launcher, path=str(Path(sys.executable).parent)):
        pytest.skip("there is no mpirun beside this Python")
    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train")
    write_input(tmp_path, tiny_input())
    assert main(["scaling", "input.json", "-n", "2", "--launcher", launcher, "--steps", "10"]) == 0
    (row,) = json.loads(Path("scaling/scaling.json").read_text())["rows"]
    assert row["workers"] == row["samples_per_step"] == 2
    assert row["budget"]["communication"] > 0
    assert sum(row["budget"].values()) == pytest.approx(1, abs=1e-3)
    assert not list(Path("scaling/2").glob("*.safetensors"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input.json", "scaling", "train"]


def test_a_strong_test_shares_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train")
    write_input(tmp_path, tiny_input())
    assert main(["scaling", "input.json", "-n", "2", "--strong", "--steps", "10"]) == 0
    (row,) = json.loads(Path("scaling/scaling.json").read_text())["rows"]
    assert (row["workers"], row["per_frame"], row["samples_per_step"]) == (2, 2, 1)
    assert "whose atoms are shared" in Path("scaling/scaling.md").read_text()
