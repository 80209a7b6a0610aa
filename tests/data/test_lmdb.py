"""Frames in LMDB environments are those that were written, grouped by their number of atoms."""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np
import pytest
from system_files import NAMES, make_arrays, write_system

from lmdb_files import of_set, write_lmdb
from lockstep.data import DataSet, named
from lockstep.errors import DataError
from lockstep.tasks.energy.arrays import LABELS
from runs import dp, make_frames, tiny_input, tiny_system, write_frames, write_input

ENERGY_AND_FORCE = named(LABELS, ["energy", "force"])


def chosen(n_frames: int, natoms: int) -> dict[str, np.ndarray]:
    arrays = make_arrays(n_frames, natoms)
    return {name: arrays[name] for name in ("coord", "box", "energy", "force")}


def test_frames_are_those_of_the_same_system_in_files(tmp_path: Path) -> None:
    arrays = chosen(5, 3)
    write_system(tmp_path / "files", [arrays], [0, 1, 1])
    write_lmdb(tmp_path / "a.lmdb", of_set(arrays, [0, 1, 1]), NAMES)
    one = DataSet(tmp_path / "files", NAMES, ENERGY_AND_FORCE).read(0, [3, 1])
    data = DataSet(tmp_path / "a.lmdb", NAMES, ENERGY_AND_FORCE)
    other = data.read(0, [3, 1])
    assert (data.name(0), data.n_frames.tolist()) == (f"{tmp_path / 'a.lmdb'}#3", [5])
    assert other.cell is not None
    np.testing.assert_array_equal(one.types, other.types)
    np.testing.assert_array_equal(one.coord, other.coord)
    np.testing.assert_array_equal(one.cell, other.cell)
    for name, values in one.labels.items():
        np.testing.assert_array_equal(values, other.labels[name])


def test_frames_of_several_sizes_and_sources_are_systems_of_their_own(tmp_path: Path) -> None:
    small, large = of_set(chosen(3, 3), [1, 0, 0]), of_set(chosen(2, 4), [0, 0, 0, 1])
    write_lmdb(tmp_path / "b.lmdb", [small[0], large[0], small[1], large[1], small[2]], ("H", "O"))
    data = DataSet(tmp_path, NAMES, ENERGY_AND_FORCE)
    assert [data.name(system).rpartition("#")[2] for system in range(2)] == ["3", "4"]
    assert data.n_frames.tolist() == [3, 2]
    np.testing.assert_array_equal(data.read(0, [2]).coord.ravel(), small[2][1]["coord"])
    # The names of the environment's types are in another order than the model's.
    assert data.read(0, [0]).types.tolist() == [[0, 1, 1]]
    write_lmdb(tmp_path / "c.lmdb", small, NAMES, frame_system_ids=[0, 1, 1], frame_nlocs=[3, 3, 3])
    assert DataSet(tmp_path / "c.lmdb", NAMES).n_frames.tolist() == [1, 2]
    assert DataSet(f"{tmp_path}/c.lmdb#1.3", NAMES).n_frames.tolist() == [2]


def test_frames_without_a_cell_are_not_periodic(tmp_path: Path) -> None:
    arrays = chosen(2, 3)
    arrays["box"] = arrays["box"] * 0
    write_lmdb(tmp_path / "d.lmdb", of_set(arrays, [0, 1, 1]), NAMES)
    assert DataSet(tmp_path / "d.lmdb", NAMES).read(0, [1]).cell is None


def test_a_frame_that_lacks_what_the_first_has_is_refused_by_its_number(tmp_path: Path) -> None:
    frames = of_set(chosen(3, 3), [0, 1, 1])
    del frames[2][1]["force"]
    write_lmdb(tmp_path / "e.lmdb", frames, NAMES)
    with pytest.raises(DataError, match="force is missing in frame 2"):
        DataSet(tmp_path / "e.lmdb", NAMES, ENERGY_AND_FORCE).read(0, [0, 2])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"__metadata__", None, "no key __metadata__"),
        (b"__metadata__", b"\xc1", "no msgpack"),
        (b"000000000000", None, "no frame 000000000000"),
    ],
)
def test_a_broken_environment_is_refused_in_words(tmp_path: Path, key: bytes, value: bytes | None, words: str) -> None:
    folder = write_lmdb(tmp_path / "f.lmdb", of_set(chosen(1, 3), [0, 1, 1]), NAMES)
    environment = lmdb.open(str(folder))
    with environment.begin(write=True) as transaction:
        transaction.delete(key)
        if value:
            transaction.put(key, value)
    environment.close()
    with pytest.raises(DataError, match=words):
        DataSet(folder, NAMES)


def test_an_input_trains_on_it_as_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    types = (0, 0, 1, 1, 0, 1)
    frames = make_frames(6, types, seed=0)
    write_lmdb(tmp_path / "train.lmdb", of_set(frames, types), ("A", "B"))
    tiny_system(tmp_path / "train")
    curves = []
    for systems in ("train", "train.lmdb"):
        write_input(tmp_path, tiny_input(training__training_data__systems=systems, training__numb_steps=4))
        assert dp("train", "input.json", "-v", "WARNING") == 0
        curves.append(Path("lcurve.out").read_text())
    assert curves[0] == curves[1]


def test_one_environment_for_training_and_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    types = (0, 1, 1, 0)
    write_lmdb(tmp_path / "g.lmdb", of_set(make_frames(4, types, seed=1), types), ("A", "B"))
    write_frames(tmp_path / "more", make_frames(2, types, seed=2), types, ("A", "B"))
    changes = {"training__training_data__systems": ["g.lmdb", "more"], "training__numb_steps": 2}
    write_input(tmp_path, tiny_input(**changes, training__validation_data={"systems": "g.lmdb"}))
    assert dp("train", "input.json", "-v", "WARNING") == 0
