"""The wheel that `python -m build` makes: what is in it, and that it trains where nothing else is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from lockstep.version import __version__

ROOT = Path(__file__).resolve().parents[2]
COPPER = ROOT / "examples" / "copper"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LOCKSTEP_"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the source distribution, as a release is; with the pinned setuptools of this environment."""
    pytest.importorskip("build", reason="pip install '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (path,) = folder.glob("*.whl")
    return path


def test_what_is_in_the_wheel(wheel: Path) -> None:
    assert __version__ == "0.2.0"
    assert wheel.name == f"lockstep_dp-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        entry_points = archive.read(f"lockstep_dp-{__version__}.dist-info/entry_points.txt").decode()
        metadata = archive.read(f"lockstep_dp-{__version__}.dist-info/METADATA").decode()
    package = ROOT / "src"
    ours = {path.relative_to(package) for path in (package / "lockstep").rglob("*") if path.is_file()}
    assert {str(path) for path in ours if "__pycache__" not in path.parts} <= inside
    assert not [name for name in inside if not name.startswith(("lockstep/", "lockstep_dp-"))]
    for line in ("dp = lockstep.cli.main:main", "lockstep = lockstep.cli.main:main", "lockstep = lockstep.takeover"):
        assert line in entry_points
    for extra in ("mpi", "ase", "tensorboard", "plot", "deepmd", "all"):
        assert f"Provides-Extra: {extra}" in metadata


@pytest.mark.timeout(900)
def test_it_trains_where_nothing_else_is_installed(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=True, symlinks=True)
    there = tmp_path / "empty" / "bin"
    # The build of torch that this environment has: it is at hand, and what the tests ran with.
    torch = f"torch=={importlib.metadata.version('torch')}"
    pip = (there / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
    run(*pip, "--constraint", ROOT / "constraints.txt", torch, f"{wheel}[all]")

    config = json.loads((COPPER / "input.json").read_text())
    config["training"] |= {"numb_steps": 20, "disp_freq": 10, "save_freq": 20}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "input.json").write_text(json.dumps(config))
    (tmp_path / "run" / "data").symlink_to(COPPER / "data")
    said = run(there / "dp", "train", "input.json", cwd=tmp_path / "run")
    assert "finished" in said
    rows = (tmp_path / "run" / "lcurve.out").read_text().splitlines()
    assert rows[-1].split()[0] == "20"
    where = "import lockstep, mpi4py, ase, tensorboard, matplotlib; print(lockstep.__file__)"
    assert run(there / "python", "-c", where, cwd=tmp_path / "run").startswith(str(tmp_path / "empty"))
    assert __version__ in run(there / "lockstep", "--version", cwd=tmp_path / "run")
