"""What all verbs have in common: quick help, one screen for every mistake, exit codes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_samples import write_model, write_system

import lockstep
from lockstep.cli import VERBS

HEAVY = ("torch", "pydantic", "matplotlib", "numpy", "h5py", "rich", "yaml", "ase")
SOURCE = str(Path(lockstep.__file__).parents[1])


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("statement", ["import lockstep", "from lockstep.cli.main import build_parser; build_parser()"])
def test_nothing_heavy_is_loaded_before_it_is_needed(statement: str) -> None:
    shown = python(f"{statement}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])")
    assert shown.stdout.strip() == "[]", shown.stderr


def test_help_is_quick() -> None:
    # Time on the processor: other tests may be using the cores, and the wall clock cannot tell.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert python("from lockstep.cli.main import main; main(['--help'])").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_help_names_every_verb(dp: Callable) -> None:
    result = dp("--help")
    names = [verb.__name__.rpartition(".")[2].replace("_", "-") for verb in VERBS]
    assert len(names) == 10
    assert all(name in result.out for name in names)


@pytest.mark.parametrize("verb", [verb.__name__.rpartition(".")[2].replace("_", "-") for verb in VERBS])
def test_every_verb_has_help(dp: Callable, verb: str) -> None:
    result = dp(verb, "--help")
    assert result.code == 0
    assert f"usage: dp {verb}" in result.out
    assert "None" not in result.out


def test_version(dp: Callable) -> None:
    assert dp("--version").out == f"Lockstep v{lockstep.__version__}\n"


def test_an_unknown_verb(dp: Callable) -> None:
    assert dp("squeeze").code == 2


MODEL_VERBS = {
    "test": ["test", "-s", "water", "-m"],
    "show": ["show"],
    "freeze": ["freeze", "-o", "new.dp", "-c"],
    "model-devi": ["model-devi", "-s", "water", "-m"],
}
SYSTEM_VERBS = {
    "test": ["test", "-m", "model.dp", "-s"],
    "model-devi": ["model-devi", "-m", "model.dp", "model.dp", "-s"],
    "neighbor-stat": ["neighbor-stat", "-r", "4.0", "-s"],
}


def assert_one_screen(result: object, *words: str) -> None:
    code, err = result.code, result.err  # type: ignore[attr-defined]
    assert code == 2
    assert "Traceback" not in err
    assert err.count("\n") <= 5
    for word in words:
        assert word in err


@pytest.mark.parametrize("verb", MODEL_VERBS)
def test_a_model_that_is_not_there(dp: Callable, tmp_path: Path, verb: str) -> None:
    assert_one_screen(dp(*MODEL_VERBS[verb], "missing"), "missing")
    assert_one_screen(dp(*MODEL_VERBS[verb], "missing.dp"), "missing.dp", "no such")


@pytest.mark.parametrize("content", [b"", b"some text, longer than a header", b"\x89HDF\r\n\x1a\n"])
@pytest.mark.parametrize("verb", MODEL_VERBS)
def test_a_file_that_is_no_model(dp: Callable, tmp_path: Path, verb: str, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    assert_one_screen(dp(*MODEL_VERBS[verb], "notes.txt"), "notes.txt")


@pytest.mark.parametrize("verb", MODEL_VERBS)
def test_a_model_for_another_program(dp: Callable, tmp_path: Path, verb: str) -> None:
    (tmp_path / "graph.pb").write_bytes(b"frozen graph")
    assert_one_screen(dp(*MODEL_VERBS[verb], "graph.pb"), "dp convert-backend graph.pb graph.dp")


@pytest.mark.parametrize("verb", SYSTEM_VERBS)
def test_a_system_that_is_not_there(dp: Callable, tmp_path: Path, verb: str) -> None:
    write_model(tmp_path / "model.dp")
    assert_one_screen(dp(*SYSTEM_VERBS[verb], "missing"), "--system = 'missing'")


@pytest.mark.parametrize("verb", SYSTEM_VERBS)
def test_a_folder_without_systems(dp: Callable, tmp_path: Path, verb: str) -> None:
    write_model(tmp_path / "model.dp")
    (tmp_path / "empty").mkdir()
    assert_one_screen(dp(*SYSTEM_VERBS[verb], "empty"), "empty", "type.raw")


@pytest.mark.parametrize("verb", SYSTEM_VERBS)
def test_a_system_without_frames(dp: Callable, tmp_path: Path, verb: str) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"), labels=())
    for file in (tmp_path / "water" / "set.000").iterdir():
        file.unlink()
    assert_one_screen(dp(*SYSTEM_VERBS[verb], "water"), "water")


@pytest.mark.parametrize("verb", SYSTEM_VERBS)
def test_a_system_of_unknown_elements(dp: Callable, tmp_path: Path, verb: str) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"))
    (tmp_path / "water" / "type_map.raw").write_text("O Xx")
    types = ["-t", "O", "H"] if verb == "neighbor-stat" else []
    assert_one_screen(dp(*SYSTEM_VERBS[verb], "water", *types), "Xx")


@pytest.mark.parametrize("verb", ["test", "show"])
def test_a_log_file_that_cannot_be_written(dp: Callable, tmp_path: Path, verb: str) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"))
    (tmp_path / "file").touch()
    assert_one_screen(dp(*MODEL_VERBS[verb], "model.dp", "-l", "file/test.log"), "--log-path")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_list_of_no_systems(dp: Callable, tmp_path: Path, content: str) -> None:
    write_model(tmp_path / "model.dp")
    (tmp_path / "systems.txt").write_text(content)
    assert_one_screen(dp("test", "-m", "model.dp", "-f", "systems.txt"), "--datafile")
    assert_one_screen(dp("test", "-m", "model.dp", "-f", "missing.txt"), "--datafile")


def test_train_without_an_input_file(dp: Callable) -> None:
    assert_one_screen(dp("train", "missing.json"), "missing.json")


def test_the_program_by_itself(tmp_path: Path) -> None:
    write_system(tmp_path / "water", write_model(tmp_path / "model.dp"))
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    command = [sys.executable, "-m", "lockstep.cli.main", "test", "-m", "model.dp", "-s", "water"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert "Force  RMSE" in ran.stderr
    assert ran.stdout == ""
