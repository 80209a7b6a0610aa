"""Which command lines are DeePMD-kit's, and what is said where it, or its backend, is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lockstep.cli.handover import chosen_backend, refuse_workers_that_would_not_meet, verb_of
from lockstep.errors import UserError
from runs import dp

LINES = [
    (["train", "input.json"], "pytorch", "train"),
    (["--tf", "train", "input.json"], "tensorflow", "train"),
    (["--pt", "train", "--tf"], "pytorch", "train"),
    (["-b", "jax", "freeze"], "jax", "freeze"),
    (["--backend=pd", "test", "-m", "x"], "paddle", "test"),
    (["--np", "show", "x"], "dpmodel", "show"),
    (["--help"], "pytorch", None),
]


@pytest.mark.parametrize(("line", "backend", "verb"), LINES)
def test_backend_and_verb_of_a_command_line(line: list[str], backend: str, verb: str | None) -> None:
    assert chosen_backend(line, {}) == backend
    assert verb_of(line) == verb


def test_dp_backend_counts_where_the_command_line_says_nothing() -> None:
    assert chosen_backend(["train"], {"DP_BACKEND": "TensorFlow"}) == "tensorflow"
    assert chosen_backend(["--pt", "train"], {"DP_BACKEND": "tensorflow"}) == "pytorch"


def test_an_unknown_backend_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("--backend", "theano", "train", "x.json") == 2
    assert "tensorflow" in capfd.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_without_tensorflow_one_line_says_what_to_install(capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("--tf", "train", "x.json") == 2
    message = capfd.readouterr().err
    assert "TensorFlow" in message
    assert "pip install 'deepmd-kit[cpu]" in message
    assert "trains here without --tensorflow" in message


@pytest.mark.skipif(importlib.util.find_spec("deepmd") is not None, reason="DeePMD-kit is installed")
@pytest.mark.parametrize("verb", ["convert-backend", "compress", "gui"])
def test_without_deepmd_kit_its_verbs_name_the_pip_line(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp(verb, "a", "b") == 2
    message = capfd.readouterr().err
    assert "needs DeePMD-kit" in message
    assert "pip install 'deepmd-kit" in message


@pytest.mark.skipif(importlib.util.find_spec("deepmd") is not None, reason="DeePMD-kit is installed")
def test_without_deepmd_kit_its_models_name_the_pip_line(
    tmp_path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runs import folder_state, tiny_input, tiny_system, write_input

    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train")
    data = tiny_input()
    data["model"]["descriptor"] = {"type": "dpa2"}
    write_input(tmp_path, data)
    before = folder_state(tmp_path)
    assert dp("train", "input.json") == 2
    message = capfd.readouterr().err
    assert "DPA-2 is trained with DeePMD-kit's classes" in message
    assert "pip install 'lockstep-dp[deepmd]'" in message
    assert folder_state(tmp_path) == before


def test_workers_that_deepmd_kit_would_not_join_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_workers_that_would_not_meet("dp --tensorflow train")
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"hydra started 2 workers, .*each would train alone"):
        refuse_workers_that_would_not_meet("dp --tensorflow train")
    (tmp_path / "horovod" / "tensorflow").mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (tmp_path / "horovod" / "tensorflow" / "mpi_lib.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    refuse_workers_that_would_not_meet("dp --tensorflow train")
