"""Which build of PyTorch is installed: the real pip, an empty venv, and a folder of small wheels to choose from."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import install_torch

TOOLS = str(Path(install_torch.__file__).parent)
VERSION = install_torch.wanted_version()


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> None:
    """A wheel of a few lines that pip takes."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    parts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*parts, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in (parts | {f"{info}/RECORD": record}).items():
            archive.writestr(path, text)


def torch_wheel(folder: Path, kind: str) -> None:
    local, cuda = ("+cpu", None) if kind == "cpu" else ("", "13.0")
    files = {"torch/__init__.py": "", "torch/version.py": f"__version__ = '{VERSION}{local}'\ncuda = {cuda!r}\n"}
    wheel(folder, "torch", VERSION + local, files, requires="" if kind == "cpu" else "nvidia-cublas")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of wheels, by the builds of torch that are in them."""
    folders = {}
    for kinds in (("cpu", "cuda"), ("cuda",), ("cpu",)):
        folder = folders["+".join(kinds)] = tmp_path_factory.mktemp("wheels")
        wheel(folder, "nvidia-cublas", "13.1", {"blas.bin": "0" * 3_000_000})
        for kind in kinds:
            torch_wheel(folder, kind)
    return folders


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    return str(folder / "bin" / "python")


def act(python: str, wheels: Path, call: str) -> subprocess.CompletedProcess[str]:
    """A function of the script, in that environment, with these wheels and no others."""
    line = f"import sys; sys.path.insert(0, {TOOLS!r}); import install_torch as i; {call}"
    others = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    only_these = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    return subprocess.run([python, "-c", line], env=others | only_these, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("on_the_shelf", "asked", "driver", "expected"),
    [
        ("cpu+cuda", "auto", True, "cuda"),
        ("cpu+cuda", "cpu", True, "cpu"),
        ("cpu", "auto", True, "cpu"),
    ],
)
def test_the_build_that_is_chosen(
    on_the_shelf: str, asked: str, driver: bool, expected: str, python: str, shelf: dict[str, Path]
) -> None:
    done = act(python, shelf[on_the_shelf], f"print(i.choose({asked!r}, {driver}).kind)")
    assert done.stdout == f"{expected}\n", done.stderr


def test_a_cuda_build_without_a_driver_is_explained(python: str, shelf: dict[str, Path]) -> None:
    done = act(python, shelf["cuda"], "print(i.describe(i.choose('auto', False), 'auto', False))")
    assert "no NVIDIA driver, but pip finds no build without CUDA" in done.stdout, done.stderr
    assert "PIP_EXTRA_INDEX_URL" in done.stdout


def test_what_is_not_to_be_had_is_an_error(python: str, shelf: dict[str, Path]) -> None:
    done = act(python, shelf["cuda"], "i.main(['cpu'], driver=False)")
    assert done.returncode == 1
    assert f"pip finds no PyTorch {VERSION} without CUDA" in done.stderr


def test_installed_and_kept_until_the_other_is_asked_for(
    python: str, shelf: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    remove = [python, "-m", "pip", "uninstall", "-qy", "torch", "nvidia-cublas"]
    request.addfinalizer(lambda: subprocess.run(remove, check=True, capture_output=True))
    said = [
        act(python, shelf["cpu+cuda"], f"i.main([{asked!r}], driver={driver}); print(i.installed())").stdout
        for asked, driver in (("auto", False), ("auto", True), ("cuda", False))
    ]
    assert f"PyTorch {VERSION}+cpu, without CUDA: there is no NVIDIA driver" in said[0]
    assert "Fetching 0 MB in 1 files" in said[0]
    assert "it is there already" in said[1]
    assert "Fetching 3 MB in 2 files" in said[2]
    kinds = [text.splitlines()[-1] for text in said]
    assert kinds == [str((f"{VERSION}+cpu", "cpu"))] * 2 + [str((VERSION, "cuda"))]


def test_where_a_driver_is(tmp_path: Path) -> None:
    assert not install_torch.has_driver(tmp_path)
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "proc" / "driver" / "nvidia" / "version").touch()
    assert install_torch.has_driver(tmp_path)


def test_sizes_that_no_server_tells_are_said_to_be_unknown() -> None:
    assert install_torch.size_of("http://127.0.0.1:1/torch.whl") is None
    assert install_torch.amount([1_500_000_000, None]) == "1.5 GB in 2 files (1 of them of unknown size)"
