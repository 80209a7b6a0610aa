"""One `dp` for two programs: this one, whichever was installed last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
WHEELS = Path(os.environ.get("LOCKSTEP_KIT_WHEELS", Path(sys.prefix) / "wheels"))


def environment(folder: Path) -> Path:
    """A venv in which everything of this one is seen, and nothing has a script yet."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shared = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "shared.pth").write_text("\n".join(dict.fromkeys(shared)) + "\n")
    # The setuptools that comes with Python may be too old for this package's description.
    for old in site.glob("setuptools*"):
        shutil.rmtree(old)
    return folder / "bin"


def install(bin_folder: Path, *what: str) -> None:
    line = [str(bin_folder / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    line += ["--ignore-installed", "--no-index", *what]
    subprocess.run(line, check=True, env={**os.environ, "PIP_FIND_LINKS": str(WHEELS)})


def install_this(bin_folder: Path) -> None:
    install(bin_folder, "--no-build-isolation", "--editable", str(REPOSITORY))


def install_that(bin_folder: Path) -> None:
    install(bin_folder, "deepmd-kit==3.2.0")


def answer(*line: str | Path) -> str:
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(not list(WHEELS.glob("deepmd_kit-*.whl")), reason=f"DeePMD-kit's wheel is not in {WHEELS}")
def test_dp_is_this_program_in_both_orders(tmp_path: Path) -> None:
    bin_folder = environment(tmp_path / "venv")
    install_this(bin_folder)
    install_that(bin_folder)
    assert "from deepmd.main import main" in (bin_folder / "dp").read_text()
    assert answer(bin_folder / "dp", "--version").startswith("Lockstep v")
    assert "DeePMD-kit v3.2.0" in answer(bin_folder / "python", "-m", "deepmd", "--version")
    handed = answer(bin_folder / "dp", "convert-backend", "--help")
    assert "handed over" in handed
    assert "INPUT OUTPUT" in handed
    install_this(bin_folder)
    assert "from lockstep.cli.main import main" in (bin_folder / "dp").read_text()
    assert answer(bin_folder / "dp", "--version").startswith("Lockstep v")
