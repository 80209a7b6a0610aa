"""Installs the build of PyTorch that this machine has a use for into the environment of the python that runs this.

    .venv/bin/python tools/install_torch.py [auto|cpu|cuda]

PyTorch's default build for Linux carries CUDA: gigabytes that do nothing without an NVIDIA driver. `auto` takes a build
without it where there is no driver and pip finds one, and leaves a torch that is there already as it is. What is
fetched, and how much, is said beforehand. The version is that of constraints.txt.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import runpy
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", CONSTRAINTS)
_TITLES = {"cpu": "without CUDA", "cuda": "with CUDA"}


@dataclass(frozen=True)
class Build:
    """A torch that pip can install: what to ask pip for, and the files (name, version, address) that come with it."""

    requirement: str
    files: tuple[tuple[str, str, str], ...]

    @property
    def version(self) -> str:
        return next((version for name, version, _ in self.files if name == "torch"), "")

    @property
    def kind(self) -> str:
        cuda = "+cu" in self.version or any(name.startswith(("nvidia-", "cuda-")) for name, _, _ in self.files)
        return "cuda" if cuda else "cpu"


def has_driver(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA driver is loaded, or Windows lends its own to Linux."""
    return any((root / place).exists() for place in ("proc/driver/nvidia/version", "usr/lib/wsl/lib/libcuda.so.1"))


def wanted_version() -> str:
    found = re.search(r"^torch==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "constraints.txt has the version of torch"
    return found[1]


def installed() -> tuple[str, str] | None:
    """Version and kind of the torch that is there; it is not loaded for that."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    cuda = runpy.run_path(str(Path(spec.origin).with_name("version.py"))).get("cuda")
    return metadata.version("torch"), "cuda" if cuda else "cpu"


class NotFoundError(Exception):
    """pip found nothing that fits; its own words."""


@functools.cache
def find(requirement: str) -> Build:
    """What pip would install for this."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = subprocess.run(
            [*_PIP, "--dry-run", "--report", report, requirement], capture_output=True, text=True, check=False
        )
        if asked.returncode:
            raise NotFoundError(asked.stderr.strip())
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    places = [(item["metadata"]["name"], item["metadata"]["version"], item["download_info"]["url"]) for item in items]
    return Build(requirement, tuple(places))


def choose(wanted: str, driver: bool) -> Build:
    """The build to install. A plain `==` would take a CPU build before a plain one wherever both are to be had."""
    version = wanted_version()
    requirements = {
        "cpu": (f"torch=={version}+cpu", f"torch==={version}"),
        "cuda": (f"torch==={version}", f"torch=={version}"),
    }
    kinds = {"cpu": ("cpu",), "cuda": ("cuda",), "auto": ("cuda", "cpu") if driver else ("cpu", "cuda")}[wanted]
    answers = []
    for kind in kinds:
        for requirement in requirements[kind]:
            try:
                build = find(requirement)
            except NotFoundError as problem:
                answers.append(str(problem))
                continue
            if build.kind == kind:
                return build
            answers.append(f"{requirement} is a build {_TITLES[build.kind]}")
    raise NotFoundError("\n".join(dict.fromkeys(answers)))


def size_of(address: str) -> int | None:
    """Bytes of a file that is to be fetched; None where its server does not say."""
    parts = urllib.parse.urlsplit(address)
    try:
        if parts.scheme == "file":
            return os.path.getsize(urllib.request.url2pathname(parts.path))
        trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def amount(sizes: Iterable[int | None]) -> str:
    """Sizes added up, for people."""
    listed = list(sizes)
    total = sum(size or 0 for size in listed)
    text = f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"
    unknown = listed.count(None)
    return f"{text} in {len(listed)} files" + (f" ({unknown} of them of unknown size)" if unknown else "")


def describe(build: Build, wanted: str, driver: bool) -> str:
    """Which build, why, how to have the other one, and how much there is to fetch."""
    why = "asked for by TORCH" if wanted != "auto" else f"there is {'an' if driver else 'no'} NVIDIA driver"
    if wanted == "auto" and build.kind == "cuda" and not driver:
        why += ", but pip finds no build without CUDA; PIP_EXTRA_INDEX_URL may name an index that has one"
    other = "cpu" if build.kind == "cuda" else "cuda"
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size_of, (address for _, _, address in build.files)))
    return (
        f"PyTorch {build.version}, {_TITLES[build.kind]}: {why} (make TORCH={other} takes the other build).\n"
        f"Fetching {amount(sizes)}, less what pip has in its cache."
    )


def main(arguments: list[str] | None = None, driver: bool | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="auto", choices=("auto", "cpu", "cuda"))
    wanted = parser.parse_args(arguments).build
    version, kind = installed() or ("", "")
    if version.partition("+")[0] == wanted_version() and wanted in ("auto", kind):
        print(f"PyTorch {version}, {_TITLES[kind]}: it is there already.")
        return
    driver = has_driver() if driver is None else driver
    try:
        build = choose(wanted, driver)
    except NotFoundError as answers:
        sys.exit(
            f"{answers}\n\npip finds no PyTorch {wanted_version()} {_TITLES.get(wanted, 'here')}.\n"
            "An index that has one can be named by PIP_EXTRA_INDEX_URL, a folder with wheels by PIP_FIND_LINKS."
        )
    print(describe(build, wanted, driver), flush=True)
    subprocess.run([*_PIP, build.requirement], check=True)


if __name__ == "__main__":
    main()
