"""Every kind of bad data is refused, with the file, the reason and the place in it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from system_files import APARAM, FPARAM, NAMES, make_arrays, simple_system, write_group, write_system

from lockstep.config.model import EnergyFittingConfig
from lockstep.data import DataSet, requiring
from lockstep.errors import DataError
from lockstep.tasks.energy.arrays import LABELS, energy_arrays

Spoil = Callable[[Path], None]


def replaced(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    def spoil(system: Path) -> None:
        file = system / "set.000" / f"{name}.npy"
        np.save(file, change(np.load(file)))

    return spoil


def poked(name: str, place: tuple[int, ...], value: float) -> Spoil:
    def change(values: np.ndarray) -> np.ndarray:
        values[place] = value
        return values

    return replaced(name, change)


def written(name: str, text: str) -> Spoil:
    return lambda system: (system / name).write_text(text) and None


def removed(name: str) -> Spoil:
    return lambda system: (system / name).unlink()


def cut(name: str, count: int) -> Spoil:
    def spoil(system: Path) -> None:
        file = system / "set.000" / name
        file.write_bytes(file.read_bytes()[:count])

    return spoil


def without_sets(system: Path) -> None:
    (system / "set.000").rename(system / "not_a_set")


class Trap:
    """Unpickling it would leave a trace."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return (setattr, (Trap, "sprung", True))  # type: ignore[return-value]


def pickled(system: Path) -> None:
    np.save(system / "set.000" / "coord.npy", np.array([Trap()], dtype=object), allow_pickle=True)


def bare_pickle(system: Path) -> None:
    (system / "set.000" / "coord.npy").write_bytes(pickle.dumps(list(range(100))))


def second_set(names: tuple[str, ...]) -> Spoil:
    def spoil(system: Path) -> None:
        arrays = make_arrays(2, 3)
        (system / "set.001").mkdir()
        for name in names:
            np.save(system / "set.001" / f"{name}.npy", arrays[name])

    return spoil


def mixed(types: list[list[int]]) -> Spoil:
    return lambda system: np.save(system / "set.000" / "real_atom_types.npy", np.array(types))


WHEN_OPENED: list[tuple[str, Spoil, str]] = [
    ("truncated numbers", cut("force.npy", 200), r"force\.npy: the file is truncated.*\(4, 9\)"),
    ("truncated header", cut("force.npy", 40), r"force\.npy: its npy header cannot be read"),
    ("empty file", cut("energy.npy", 0), r"energy\.npy: not an npy file"),
    ("pickled objects", pickled, r"coord\.npy: the array holds Python objects"),
    ("a pickle", bare_pickle, r"coord\.npy: not an npy file"),
    ("text array", replaced("energy", lambda a: a.astype(str)), r"energy\.npy: .* not of numbers"),
    ("complex array", replaced("force", lambda a: a.astype(complex)), r"force\.npy: .*complex"),
    ("boolean array", replaced("force", lambda a: a > 0), r"force\.npy: .*bool"),
    ("atoms differ", replaced("coord", lambda a: a[:, :6]), r"coord\.npy: its shape is \(4, 6\): expected \(4, 9\)"),
    ("a number alone", replaced("coord", lambda a: a[0, 0]), r"coord\.npy: its shape is \(\)"),
    ("force of other atoms", replaced("force", lambda a: a[:, :6]), r"force\.npy: its shape is \(4, 6\)"),
    ("transposed force", replaced("force", lambda a: a.T.copy()), r"force\.npy: its shape is \(9, 4\)"),
    ("fewer energies", replaced("energy", lambda a: a[:3]), r"energy\.npy: it has 3 frames, but .* has 4"),
    ("more forces", replaced("force", lambda a: np.vstack([a, a])), r"force\.npy: it has 8 frames"),
    ("box of six", replaced("box", lambda a: a[:, :6]), r"box\.npy: its shape is \(4, 6\): expected \(4, 9\)"),
    ("no coordinates", removed("set.000/coord.npy"), r"set\.000: coord\.npy is missing"),
    ("no sets", without_sets, r"the system has no set\.\* folder"),
    ("no atoms", written("type.raw", "\n"), r"type\.raw: the system has no atoms"),
    ("no frames", lambda s: [replaced(n, lambda a: a[:0])(s) for n in ("coord", "box", "energy", "force")] and None,
     r"the system has no frames"),
    ("words for types", written("type.raw", "O H H\n"), r"type\.raw: not a list of type numbers"),
    ("fractional types", written("type.raw", "0 1 1.5\n"), r"type\.raw: not a list of type numbers"),
    ("negative type", written("type.raw", "0 1 -1\n"), r"type\.raw: type -1 is negative"),
    ("type beyond its names", written("type.raw", "0 1 2\n"), r"type\.raw: type 2 is out of range: type_map\.raw"),
    ("unknown element", written("type_map.raw", "O Pu\n"), r"type\.raw: the system has atoms of Pu.*\n.*'Pu'"),
    ("element named twice", written("type_map.raw", "O O\n"), r"type_map\.raw: a name occurs twice"),
    ("no names", written("type_map.raw", ""), r"type_map\.raw: the file names no element"),
    ("label in one set only", second_set(("coord", "box", "energy")), r"set\.001: force\.npy is missing here"),
    ("box in one set only", second_set(("coord", "energy", "force")), r"set\.001: box\.npy is missing here"),
    ("mixed types of wrong shape", mixed([[0, 1, 1]]), r"real_atom_types\.npy: it has 1 frames"),
    ("prefactor a component", lambda s: np.save(s / "set.000" / "atom_pref.npy", np.ones((4, 9))),
     r"atom_pref\.npy: .*one prefactor an atom"),
]  # fmt: skip

WHEN_READ: list[tuple[str, Spoil, str]] = [
    ("NaN force", poked("force", (2, 7), np.nan), r"force\.npy: the value is nan in frame 2 .*, atom 2"),
    ("infinite coordinate", poked("coord", (0, 3), np.inf), r"coord\.npy: the value is inf in frame 0 .*, atom 1"),
    ("NaN energy", poked("energy", (1,), np.nan), r"energy\.npy: the value is nan in frame 1"),
    ("NaN box", poked("box", (3, 0), np.nan), r"box\.npy: the value is nan in frame 3"),
    ("no cell", replaced("box", np.zeros_like), r"box\.npy: the cell of frame 0 .* is flat.*\n.*nopbc"),
    ("flat cell", replaced("box", lambda a: np.tile([1.0, 0, 0, 0, 1, 0, 1, 1, 0], (4, 1))), r"box\.npy: .* is flat"),
    ("mixed type out of range", mixed([[0, 1, 1]] * 3 + [[0, 5, 1]]), r"type 5 in frame 3 .*, atom 1"),
    ("mixed type below -1", mixed([[0, 1, -2]] * 4), r"real_atom_types\.npy: type -2 in frame 0"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), [pytest.param(*case[1:], id=case[0]) for case in WHEN_OPENED])
def test_bad_data_are_refused_when_opened(tmp_path: Path, spoil: Spoil, message: str) -> None:
    system = simple_system(tmp_path / "bad")
    spoil(system)
    with pytest.raises(DataError, match=message) as caught:
        DataSet([system], NAMES, LABELS)
    assert str(system) in caught.value.where
    assert caught.value.remedy
    assert not hasattr(Trap, "sprung")


@pytest.mark.parametrize(("spoil", "message"), [pytest.param(*case[1:], id=case[0]) for case in WHEN_READ])
def test_bad_data_are_refused_when_read(tmp_path: Path, spoil: Spoil, message: str) -> None:
    system = simple_system(tmp_path / "bad")
    spoil(system)
    data = DataSet([system], NAMES, LABELS)
    with pytest.raises(DataError, match=message) as caught:
        data.read(0, np.arange(4))
    assert str(system / "set.000") in caught.value.where
    assert caught.value.remedy


def test_the_frame_named_is_that_of_the_file_of_its_set(tmp_path: Path) -> None:
    sets = [make_arrays(3, 3), make_arrays(2, 3)]
    sets[1]["energy"][1] = np.nan
    write_system(tmp_path / "a", sets, [0, 1, 1])
    with pytest.raises(DataError, match=r"set\.001/energy\.npy: the value is nan in frame 1 "):
        DataSet(tmp_path / "a", NAMES, LABELS).read(0, [0, 4])


def test_a_type_beyond_the_models_is_refused_without_type_map_raw(tmp_path: Path) -> None:
    write_system(tmp_path / "a", [make_arrays(2, 3)], [0, 1, 2], names=None)
    with pytest.raises(DataError, match="type 2 is out of range: the model's type_map"):
        DataSet(tmp_path / "a", NAMES, LABELS)


def test_an_unknown_element_in_mixed_types_is_named(tmp_path: Path) -> None:
    arrays = {**make_arrays(2, 3), "real_atom_types": np.array([[0, 1, 1], [0, 1, 2]])}
    write_system(tmp_path / "a", [arrays], [0, 0, 0], names=("O", "H", "Pu"))
    data = DataSet(tmp_path / "a", NAMES, LABELS)
    data.read(0, [0])
    with pytest.raises(DataError, match="atoms of Pu"):
        data.read(0, [1])


def test_a_frame_of_nothing_but_padding_is_refused(tmp_path: Path) -> None:
    arrays = {**make_arrays(3, 3), "real_atom_types": np.array([[0, 1, 1], [0, 1, -1], [-1, -1, -1]])}
    data = DataSet(write_system(tmp_path / "a", [arrays], [0, 0, 0]), NAMES)
    assert data.read(0, [0, 1]).types.tolist() == [[0, 1, 1], [0, 1, -1]]
    with pytest.raises(DataError, match=r"real_atom_types\.npy: frame 2 .* has no atoms"):
        data.read(0, [1, 2])


@pytest.mark.parametrize("label", ["fparam", "aparam"])
def test_parameters_of_the_model_must_be_in_every_system(tmp_path: Path, label: str) -> None:
    write_system(tmp_path / "a", [make_arrays(2, 3)], [0, 1, 1])
    simple_system(tmp_path / "b")
    wanted = FPARAM if label == "fparam" else APARAM
    with pytest.raises(DataError, match=rf"b: {label}\.npy is missing"):
        DataSet(tmp_path, NAMES, [wanted])
    optional = DataSet(tmp_path, NAMES, [replace(wanted, required=False)])
    assert optional.has(label).tolist() == [True, False]


def test_a_wrong_number_of_parameters_names_the_option(tmp_path: Path) -> None:
    write_system(tmp_path / "a", [make_arrays(2, 3)], [0, 1, 1])
    with pytest.raises(DataError, match=r"fparam\.npy: its shape is \(2, 2\).*numb_fparam"):
        DataSet(tmp_path, NAMES, energy_arrays(EnergyFittingConfig(numb_fparam=3)))


def test_required_labels_are_checked(tmp_path: Path) -> None:
    simple_system(tmp_path / "a")
    DataSet(tmp_path, NAMES, requiring(LABELS, ["force"]))
    with pytest.raises(DataError, match=r"virial\.npy is missing"):
        DataSet(tmp_path, NAMES, requiring(LABELS, ["virial"]))


def test_a_file_shortened_after_opening_is_refused(tmp_path: Path) -> None:
    system = simple_system(tmp_path / "a")
    data = DataSet(system, NAMES, LABELS)
    cut("force.npy", 300)(system)
    with pytest.raises(DataError, match="became shorter"):
        data.read(0, [3])


def test_a_system_removed_after_opening_is_refused(tmp_path: Path) -> None:
    system = simple_system(tmp_path / "a")
    data = DataSet(system, NAMES, LABELS)
    (system / "set.000" / "force.npy").unlink()
    with pytest.raises(DataError, match=r"force\.npy: cannot be read"):
        data.read(0, [3])


def test_a_damaged_hdf5_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.hdf5").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        DataSet(tmp_path / "bad.hdf5", NAMES, LABELS)


def test_a_missing_hdf5_group_is_refused_with_those_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "water", [make_arrays(2, 3)], [0, 1, 1])
    with pytest.raises(DataError, match=r"no group /ice\n.*water"):
        DataSet(f"{tmp_path}/all.hdf5#/ice", NAMES, LABELS)


def test_hdf5_arrays_are_checked_alike(tmp_path: Path) -> None:
    arrays = make_arrays(3, 3)
    arrays["force"] = arrays["force"][:2]
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "water", [arrays], [0, 1, 1])
    with pytest.raises(DataError, match=r"water/set\.000/force\.npy: it has 2 frames"):
        DataSet(tmp_path / "all.hdf5", NAMES, LABELS)
