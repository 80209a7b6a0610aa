"""Which systems an input file's `systems` stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from system_files import simple_system

from lockstep.data import find_systems
from lockstep.errors import DataError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/ice", "b/water", "a", "b/water/inner"):
        simple_system(tmp_path / name, n_frames=1)
    return tmp_path


def names(found: list[str], top: Path) -> list[str]:
    return [str(Path(path).relative_to(top)) for path in found]


def test_a_folder_is_searched_at_every_depth_in_order_of_paths(tree: Path) -> None:
    assert names(find_systems(str(tree)), tree) == ["a", "b/ice", "b/water", "b/water/inner"]


def test_entries_of_a_list_keep_their_order_and_may_repeat(tree: Path) -> None:
    found = find_systems([str(tree / "b/ice"), tree / "a", str(tree / "b/ice")])
    assert names(found, tree) == ["b/ice", "a", "b/ice"]


def test_entries_of_a_list_are_searched_too(tree: Path) -> None:
    assert names(find_systems([tree / "b", tree / "a"]), tree) == ["b/ice", "b/water", "b/water/inner", "a"]


def test_patterns_choose_among_the_folders_below(tree: Path) -> None:
    assert names(find_systems(tree, rglob_patterns=["wat*", "i*"]), tree) == ["b/ice", "b/water", "b/water/inner"]
    with pytest.raises(DataError, match="matches `rglob_patterns`"):
        find_systems(tree, rglob_patterns=["nothing"])


def test_links_that_vanish_meanwhile_are_passed_over(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "gone").symlink_to(tree / "a")

    def vanished(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr("os.path.realpath", vanished)
    assert names(find_systems(str(tree)), tree) == ["a", "b/ice", "b/water", "b/water/inner"]


def test_links_are_followed_once_and_loops_end(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = simple_system(tmp_path_factory.mktemp("elsewhere") / "far", n_frames=1)
    (tree / "linked").symlink_to(elsewhere.parent)
    (tree / "b" / "loop").symlink_to(tree)
    (tree / "again").symlink_to(tree / "a")
    found = find_systems(tree)
    assert len({Path(path).resolve() for path in found}) == len(found) == 5
    assert "linked/far" in names(found, tree)


def test_relative_paths_start_from_the_current_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "b")
    assert find_systems(["ice", "../a"]) == ["ice", "../a"]


def test_a_missing_path_is_shown_as_tried_and_found_beside_the_input(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "a")
    with pytest.raises(DataError) as caught:
        find_systems(["ice"], input_folder=tree / "b")
    assert str(tree / "a" / "ice") in str(caught.value)
    assert f"exist beside the input file, as {tree / 'b' / 'ice'}" in str(caught.value)
    with pytest.raises(DataError, match="the folder in which the command is run"):
        find_systems(["ice"], input_folder=tree)


@pytest.mark.parametrize("systems", [[], "empty", ["empty"]])
def test_nothing_found_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch, systems: str | list[str]) -> None:
    (tree / "empty").mkdir()
    monkeypatch.chdir(tree)
    with pytest.raises(DataError, match="no system"):
        find_systems(systems)
