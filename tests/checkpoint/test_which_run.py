"""A path means that path: every verb loads the checkpoint of the run that was named, and says which it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from runs import dp, tiny_input, tiny_system, write_input

HERE, THERE = 4, 8
"""How many steps the two runs have, by which they are told apart."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of different seeds and lengths, in folders side by side, under the same names."""
    root = tmp_path_factory.mktemp("made")
    tiny_system(root / "train", n_frames=3)
    with pytest.MonkeyPatch.context() as patch:
        for name, steps in (("here", HERE), ("there", THERE)):
            (root / name).mkdir()
            (root / name / "train").symlink_to(root / "train")
            patch.chdir(root / name)
            settings = tiny_input(training__numb_steps=steps, training__save_freq=2, model__descriptor__seed=steps)
            write_input(root / name, settings)
            assert dp("train", "input.json") == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them to work on; the current folder is that of the first."""
    for name in ("here", "there"):
        shutil.copytree(made / name, tmp_path / name, symlinks=True)
    tiny_system(tmp_path / "train", n_frames=3)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def train(*arguments: str, **changes: Any) -> None:
    write_input(Path(), tiny_input(training__save_freq=2, **changes))
    assert dp("train", "input.json", *arguments) == 0


def loaded_lines(text: str) -> list[str]:
    return [line.split("Loaded ", 1)[1] for line in text.splitlines() if "Loaded " in line]


# --- every verb, from the folder of another run ------------------------------------------------------------------

VERBS: dict[str, Callable[[str], list[str]]] = {
    "test": lambda where: ["test", "-m", where, "-s", "train"],
    "freeze": lambda where: ["freeze", "-c", where, "-o", "made.dp"],
    "show": lambda where: ["show", where],
    "model-devi": lambda where: ["model-devi", "-m", where, where, "-s", "train"],
    "restart": lambda where: ["train", "input.json", "--restart", where],
    "init-model": lambda where: ["train", "input.json", "--init-model", where],
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("where", ["../there", "../there/model.ckpt", "../there/model.ckpt.safetensors"])
def test_every_verb_takes_the_run_that_is_named(
    verb: str, where: str, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_input(root / "here", tiny_input(training__numb_steps=10, model__descriptor__seed=THERE))
    capfd.readouterr()
    assert dp(*VERBS[verb](where)) == 0
    lines = loaded_lines(capfd.readouterr().err)
    assert lines
    assert set(lines) == {f"../there/model.ckpt-{THERE}.safetensors (step {THERE})"}


def test_the_calculator_takes_the_run_that_is_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("ase")
    from lockstep import DP

    with caplog.at_level("INFO", logger="lockstep"):
        DP("../there")
    assert loaded_lines(caplog.text) == [f"../there/model.ckpt-{THERE}.safetensors (step {THERE})"]


def test_models_of_two_runs_differ(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("model-devi", "-m", ".", "../there", "-s", "train", "-o", "devi.out") == 0
    log = capfd.readouterr().err
    assert loaded_lines(log) == [f"model.ckpt-{HERE}.safetensors (step {HERE})",
                                 f"../there/model.ckpt-{THERE}.safetensors (step {THERE})"]  # fmt: skip
    rows = [line.split() for line in Path("devi.out").read_text().splitlines() if not line.startswith("#")]
    assert all(float(row[4]) > 0 for row in rows)
    assert "WARNING" not in log


def test_one_model_named_twice_is_warned_of(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("model-devi", "-m", ".", "model.ckpt", "-s", "train", "-o", "devi.out") == 0
    assert "WARNING . and model.ckpt are the same model" in capfd.readouterr().err


def test_a_frozen_model_is_told_too(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp("freeze", "-o", "made.dp") == 0
    capfd.readouterr()
    train("--init-frz-model", "made.dp", model__descriptor__seed=HERE)
    assert loaded_lines(capfd.readouterr().err) == ["made.dp"]


def test_nothing_there_is_not_replaced_by_what_is_here(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (root / "there").glob("model.ckpt*"):
        path.unlink()
    for where in ("../there", "../there/model.ckpt"):
        assert dp("show", where) == 2
        assert where in capfd.readouterr().err


# --- the program's own hint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"training__save_ckpt": "deep/model.ckpt"},
        {"training__save_ckpt": str(Path("$PWD") / "model.ckpt")},
        {"training__save_dir": "kept"},
        {"training__save_dir": "../kept"},
    ],
    ids=["beside", "below", "absolute", "save_dir", "save_dir outside"],
)
def test_the_hint_after_moving_an_earlier_run_away_leads_to_that_run(
    names: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = root / "new"
    folder.mkdir()
    (folder / "train").symlink_to(root / "train")
    monkeypatch.chdir(folder)
    names = {key: value.replace("$PWD", str(folder)) for key, value in names.items()}
    train(training__numb_steps=6, model__descriptor__seed=1, **names)
    capfd.readouterr()
    train(training__numb_steps=2, model__descriptor__seed=2, **names)
    hint = next(line for line in capfd.readouterr().err.splitlines() if "moved to" in line)
    where = hint.split("--restart ", 1)[1].rstrip(")")
    for name in (where, *(["previous-1"] if (folder / "previous-1").is_dir() else [])):
        assert load_checkpoint(name).step == 6, name
    assert load_checkpoint(names.get("training__save_ckpt", "model.ckpt")).step == 2
    train("--restart", where, training__numb_steps=8, model__descriptor__seed=1, **names)
    assert "(step 6)" in capfd.readouterr().err


def test_going_on_from_another_run_does_not_mix_with_the_one_that_was_here(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows and checkpoints of the run that was here are moved away, not continued."""
    before = Path("lcurve.out").read_bytes()
    train("--restart", "../there/model.ckpt-6", training__numb_steps=10, model__descriptor__seed=THERE)
    assert "moved to previous-1" in capfd.readouterr().err
    assert Path("previous-1/lcurve.out").read_bytes() == before
    assert [line.split()[0] for line in Path("lcurve.out").read_text().splitlines()[2:]] == ["8", "10"]
    assert load_checkpoint("previous-1").step == HERE
    assert sorted(path.name for path in Path().glob("model.ckpt-*")) == [
        "model.ckpt-10.safetensors", "model.ckpt-8.safetensors"]  # fmt: skip


# --- several runs in one folder -----------------------------------------------------------------------------------


def test_two_prefixes_of_one_name_in_two_folders(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second run is the newer; going on with the first must not take the second's weights."""
    seeds = {"a": 1, "b": 2}
    for name, seed in seeds.items():
        write_input(Path(), tiny_input(training__numb_steps=2 * seed, training__save_ckpt=f"{name}/model.ckpt",
                                       model__descriptor__seed=seed), f"{name}.json")  # fmt: skip
        assert dp("train", f"{name}.json") == 0
    before = load_checkpoint("a/model.ckpt").tensors
    capfd.readouterr()
    assert dp("train", "a.json", "--restart", "a/model.ckpt") == 0
    log = capfd.readouterr().err
    assert loaded_lines(log) == ["a/model.ckpt-2.safetensors (step 2)"]
    after = load_checkpoint("a").tensors
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert load_checkpoint("b").step == load_checkpoint("b/model.ckpt").step == 4


def test_two_prefixes_in_one_folder(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ("input.json", "checkpoint", "out.json", "model.ckpt.safetensors")
    before = {name: Path(name).read_bytes() for name in names}
    write_input(Path(), tiny_input(training__numb_steps=6, training__save_ckpt="fine.ckpt",
                                   training__disp_file="fine.out"), "fine.json")  # fmt: skip
    assert dp("train", "fine.json") == 0
    log = capfd.readouterr().err
    assert {name: Path(name).read_bytes() for name in before} == before
    assert "fine.ckpt.out.json" in log
    assert Path("fine.ckpt.out.json").is_file()
    assert load_checkpoint("model.ckpt").step == HERE
    assert load_checkpoint("fine.ckpt").step == 6
    assert dp("freeze") == 2
    assert "several runs: fine.ckpt, model.ckpt" in capfd.readouterr().err
    # Anew: only its own files are moved.
    assert dp("train", "fine.json") == 0
    assert {name: Path(name).read_bytes() for name in before} == before
    assert sorted(path.name for path in Path("previous-1").iterdir()) == [
        "fine.budget.jsonl", "fine.ckpt-4.safetensors", "fine.ckpt-6.safetensors", "fine.ckpt.out.json",
        "fine.ckpt.safetensors", "fine.out",
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["model", "model-3", "model-3-7"])
def test_prefixes_that_begin_alike(prefix: str, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("model", "model-3", "model-3-7"), start=1):
        train(training__save_ckpt=name, training__disp_file=f"{name}.out", training__numb_steps=2 * number)
    train(training__save_ckpt="model", training__disp_file="model.out", training__numb_steps=2)
    expected = 2 * (1 + ("model", "model-3", "model-3-7").index(prefix))
    assert load_checkpoint(prefix).step == expected


def test_a_name_that_may_mean_two_files_is_asked_about(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`m-2` is the checkpoint of `m` after two steps, and the prefix of another run."""
    train(training__save_ckpt="m", training__disp_file="m.out", training__numb_steps=2)
    train(training__save_ckpt="m-2", training__disp_file="m2.out", training__numb_steps=4)
    capfd.readouterr()
    assert dp("show", "m-2") == 2
    message = capfd.readouterr().err
    assert "m-2.safetensors" in message
    assert "m-2-4.safetensors" in message
    assert load_checkpoint("m-2.safetensors").step == 2


def test_a_prefix_that_ends_like_a_file(root: Path) -> None:
    settings = {"training__save_ckpt": "model.safetensors", "training__disp_file": "other.out"}
    train(training__numb_steps=4, **settings)
    train("--restart", "model.safetensors", training__numb_steps=6, **settings)
    assert load_checkpoint("model.safetensors").step == 6


# --- links, moved folders, old pointers ---------------------------------------------------------------------------


def test_a_moved_folder_is_found_at_its_new_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run takes the old place and the old names; the moved one is still itself."""
    monkeypatch.chdir(root / "there")
    absolute = {"training__save_ckpt": str(root / "there" / "model.ckpt")}
    train("--restart", "model.ckpt", training__numb_steps=THERE + 2, model__descriptor__seed=THERE, **absolute)
    monkeypatch.chdir(root)
    (root / "there").rename(root / "moved")
    shutil.copytree(root / "here", root / "there", symlinks=True)
    assert load_checkpoint("moved").step == load_checkpoint("moved/model.ckpt").step == THERE + 2
    assert load_checkpoint("there").step == load_checkpoint("there/model.ckpt").step == HERE


def test_a_folder_by_a_link(root: Path) -> None:
    os.symlink("../there", "linked")
    assert load_checkpoint("linked").step == load_checkpoint("linked/model.ckpt").step == THERE
    os.symlink(f"../there/model.ckpt-{THERE - 2}.safetensors", "best.safetensors")
    os.symlink(f"../there/model.ckpt-{THERE - 2}.safetensors", "best")
    os.symlink(f"../there/model.ckpt-{THERE - 2}.safetensors", "chosen-6.safetensors")
    for name in ("best", "best.safetensors", "chosen-6", "chosen-6.safetensors", "chosen"):
        assert load_checkpoint(name).step == THERE - 2, name


def test_a_copy_without_links_is_not_stuck_at_the_step_of_the_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cp -L` makes a file of the link, which no later checkpoint replaces."""
    shutil.copytree(root / "there", root / "copy", symlinks=False)
    monkeypatch.chdir(root / "copy")
    train("--restart", "model.ckpt", training__numb_steps=THERE + 2, model__descriptor__seed=THERE)
    assert load_checkpoint("model.ckpt").step == load_checkpoint(".").step == THERE + 2


@pytest.mark.parametrize(
    "text", ["../there/model.ckpt-8.safetensors", "model.ckpt-99.safetensors", "", "\0", "x" * 999]
)
def test_the_pointer_of_another_run_does_not_lead_away_from_a_prefix(text: str, root: Path) -> None:
    Path("checkpoint").write_text(text)
    assert load_checkpoint("model.ckpt").step == HERE
    Path("model.ckpt.safetensors").unlink()
    assert load_checkpoint("model.ckpt").step == HERE


def test_a_folder_whose_pointer_leads_to_another_run_asks_which(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("checkpoint").write_text(str(root / "there" / f"model.ckpt-{THERE}.safetensors"))
    assert dp("show", ".") == 2
    message = capfd.readouterr().err
    assert "several runs" in message
    assert str(root / "there" / "model.ckpt") in message
