"""The examples of the pages work: every block that can be run is run, in order, as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli import handover
from lockstep.cli.main import build_parser

sys.path.insert(0, str(Path(__file__).parent))
from markdown import PAGES, ROOT, blocks

BIN = Path(sys.executable).parent
MOST_STEPS = 200
# Stands before the real `dp` on the PATH and cuts long trainings short.
SHORTENER = f"""\
#!{sys.executable}
import json, os, pathlib, sys
for name in sys.argv[1:] if "train" in sys.argv[1:] else ():
    path = pathlib.Path(name)
    if path.suffix == ".json" and path.is_file():
        config = json.loads(path.read_text())
        training = config["training"]
        training["numb_steps"] = min(training["numb_steps"], {MOST_STEPS})
        # At once: several workers may do this at the same time, and read what another one writes.
        aside = path.with_name(f"{{path.name}}.{{os.getpid()}}")
        aside.write_text(json.dumps(config))
        aside.replace(path)
os.execv({str(BIN / "dp")!r}, sys.argv)
"""


def names(pages: tuple[Path, ...]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


RUNNABLE = tuple(page for page in PAGES if any(block.runs for block in blocks(page)))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like the repository to a reader of the pages, and may be written to."""
    folder = tmp_path / "lockstep"
    for name in ("examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shortener = tmp_path / "bin" / "dp"
    shortener.parent.mkdir()
    shortener.write_text(SHORTENER)
    shortener.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", RUNNABLE, ids=names(RUNNABLE))
def test_examples_of_a_page_run(page: Path, clone: Path) -> None:
    steps = [f"echo '--- {page.name}, line {block.line}' >&2\n{block.script()}" for block in blocks(page)]
    path = f"{clone.parent / 'bin'}:{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(steps)],
        cwd=clone,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def command_lines() -> list[tuple[str, list[str]]]:
    """Every `dp ...` or `lockstep ...` in a shell block, run or not, with the place where it stands."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            if block.language != "bash":
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                command = re.search(r"(?:^|\s)(?:dp|lockstep) (--?\w.*|[a-z].*)", line.split(" #")[0])
                if command and not line.startswith("#"):
                    words = shlex.split(re.split(r"\s(?:2?>|\||&&)", command[1])[0])
                    found.append((f"{page.name}:{block.line}: {command[1]}", words))
    return found


def exit_code(words: list[str]) -> int:
    """What the parser says to a command line; --help and --version end it too, but with success.

    What is handed over to DeePMD-kit is not this parser's to judge.
    """
    if handover.verb_of(words) in handover.VERBS:
        return 0
    try:
        build_parser().parse_args(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("words", [pytest.param(words, id=place) for place, words in command_lines()])
def test_command_lines_are_understood(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(words) == 0, capsys.readouterr().err


def test_pages_have_examples() -> None:
    assert {"README.md", "docs/guide.md", "docs/reliability.md"} <= set(names(RUNNABLE))
    assert len(command_lines()) > 20
