"""What is read is what was written, however the system is stored."""

from __future__ import annotations

import logging
from pathlib import Path

import h5py
import numpy as np
import pytest
from system_files import APARAM, FPARAM, NAMES, make_arrays, simple_system, write_group, write_system

from lockstep.data import ATOMS, Array, DataSet, MicroBatch, named
from lockstep.errors import DataError
from lockstep.tasks.energy.arrays import LABELS

TYPES = [0, 1, 1]


def assert_same(first: MicroBatch, second: MicroBatch) -> None:
    np.testing.assert_array_equal(first.coord, second.coord)
    np.testing.assert_array_equal(first.types, second.types)
    assert first.cell is not None
    assert second.cell is not None
    np.testing.assert_array_equal(first.cell, second.cell)
    assert first.labels.keys() == second.labels.keys()
    for name, values in first.labels.items():
        np.testing.assert_array_equal(values, second.labels[name])


@pytest.mark.parametrize("shape", [(1, -1), (-1,)])
def test_all_frames_may_lie_in_one_row(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = make_arrays(5, 3)
    write_system(tmp_path / "a", [arrays], TYPES)
    flat = {**arrays, "aparam": arrays["aparam"].reshape(shape)}
    write_system(tmp_path / "b", [flat], TYPES)
    with h5py.File(tmp_path / "c.hdf5", "w") as file:
        write_group(file, "/", [flat], TYPES)
    batches = [DataSet(tmp_path / name, NAMES, (APARAM,)).read(0, [3, 1]) for name in ("a", "b", "c.hdf5")]
    assert_same(batches[0], batches[1])
    assert_same(batches[0], batches[2])


def test_only_selected_atoms_may_have_values(tmp_path: Path) -> None:
    arrays = make_arrays(4, 3)
    dipole = Array("atomic_dipole", tail=(3,), atomic=True, selected=(1,))
    some = np.arange(24.0).reshape(4, 6)
    write_system(tmp_path / "a", [{"coord": arrays["coord"], "box": arrays["box"], "atomic_dipole": some}], TYPES)
    values = DataSet(tmp_path / "a", NAMES, (dipole,)).read(0, [2, 0]).labels["atomic_dipole"]
    assert not values[:, 0].any()
    np.testing.assert_array_equal(values[:, 1:].reshape(2, -1), some[[2, 0]])
    with pytest.raises(DataError, match="its shape is"):
        DataSet(tmp_path / "a", NAMES, (Array("atomic_dipole", tail=(3,), atomic=True),))


def test_all_labels_have_the_shapes_and_values_of_the_files(tmp_path: Path) -> None:
    arrays = make_arrays(5, 3)
    write_system(tmp_path / "a", [arrays], TYPES)
    data = DataSet(tmp_path / "a", NAMES, (*LABELS, FPARAM, APARAM))
    batch = data.read(0, [3, 1], number=17)
    assert (batch.number, batch.system) == (17, 0)
    shapes = {name: values.shape for name, values in batch.labels.items()}
    assert shapes == {
        "energy": (2,),
        "force": (2, 3, 3),
        "virial": (2, 3, 3),
        "atom_ener": (2, 3),
        "atom_pref": (2, 3),
        "fparam": (2, 2),
        "aparam": (2, 3, 3),
    }
    for name, values in {"coord": batch.coord, "box": batch.cell, **batch.labels}.items():
        assert values is not None
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values.reshape(2, -1), arrays[name][[3, 1]].reshape(2, -1))


def test_frames_are_gathered_from_all_sets_in_the_order_asked_for(tmp_path: Path) -> None:
    sets = [make_arrays(n, 3) for n in (3, 0, 1, 4)]
    write_system(tmp_path / "a", sets, TYPES)
    data = DataSet(tmp_path / "a", NAMES, LABELS)
    assert data.n_frames.tolist() == [8]
    energies = np.concatenate([item["energy"] for item in sets])
    forces = np.concatenate([item["force"] for item in sets])
    order = [7, 0, 3, 4, 2]
    batch = data.read(0, order)
    np.testing.assert_array_equal(batch.labels["energy"], energies[order])
    np.testing.assert_array_equal(batch.labels["force"].reshape(5, -1), forces[order])


def test_frame_numbers_are_unique_over_the_whole_data_set(tmp_path: Path) -> None:
    for number, n_frames in enumerate((3, 2, 4)):
        simple_system(tmp_path / f"s{number}", n_frames)
    data = DataSet(tmp_path, NAMES, LABELS)
    numbers = np.concatenate([data.read(s, np.arange(data.n_frames[s])).frames for s in range(len(data))])
    assert numbers.tolist() == list(range(9))
    assert data.total_frames == 9


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f4", ">f8", "<f2"])
def test_float_types_and_byte_orders_are_converted(tmp_path: Path, dtype: str) -> None:
    arrays = {name: values.astype(dtype) for name, values in make_arrays(4, 3).items()}
    write_system(tmp_path / "a", [arrays], TYPES)
    batch = DataSet(tmp_path / "a", NAMES, LABELS).read(0, [2, 0])
    np.testing.assert_array_equal(batch.coord.reshape(2, -1), arrays["coord"][[2, 0]].astype(np.float64))


def test_column_major_files_are_read(tmp_path: Path) -> None:
    arrays = make_arrays(4, 3)
    stored = {name: np.asfortranarray(values) for name, values in arrays.items()}
    stored["force"] = np.asfortranarray(arrays["force"].reshape(4, 3, 3))
    write_system(tmp_path / "a", [stored], TYPES)
    write_system(tmp_path / "b", [arrays], TYPES)
    data = DataSet([tmp_path / "a", tmp_path / "b"], NAMES, LABELS)
    assert_same(data.read(0, [3, 1]), data.read(1, [3, 1]))


def test_arrays_may_keep_their_natural_shape_and_single_frames_may_be_flat(tmp_path: Path) -> None:
    arrays = make_arrays(1, 3)
    flat = {name: values.reshape(-1) for name, values in arrays.items()}
    natural = {**arrays, "coord": arrays["coord"].reshape(1, 3, 3), "energy": arrays["energy"].reshape(1, 1)}
    natural["box"] = arrays["box"].reshape(1, 3, 3)
    for name, item in (("a", arrays), ("b", flat), ("c", natural)):
        write_system(tmp_path / name, [item], TYPES)
    data = DataSet(tmp_path, NAMES, LABELS)
    assert_same(data.read(0, [0]), data.read(1, [0]))
    assert_same(data.read(0, [0]), data.read(2, [0]))


def test_the_longer_names_of_atomic_labels_are_known(tmp_path: Path) -> None:
    arrays = make_arrays(2, 3)
    values = arrays.pop("atom_ener")
    write_system(tmp_path / "a", [{**arrays, "atomic_ener": values}], TYPES)
    batch = DataSet(tmp_path / "a", NAMES, LABELS).read(0, [0, 1])
    np.testing.assert_array_equal(batch.labels["atom_ener"], values)


def test_a_system_has_only_its_own_labels_and_only_those_wanted(tmp_path: Path) -> None:
    simple_system(tmp_path / "a")
    write_system(tmp_path / "b", [make_arrays(2, 3)], TYPES)
    data = DataSet(tmp_path, NAMES, LABELS)
    assert data.present(0) == ("energy", "force")
    assert data.has("virial").tolist() == [False, True]
    assert "fparam" not in data.read(1, [0]).labels  # the model asks for none
    assert set(DataSet(tmp_path, NAMES, named(LABELS, ["energy"])).read(1, [0]).labels) == {"energy"}


@pytest.mark.parametrize("address", ["all.hdf5", "all.hdf5#/deep", "all.hdf5#/deep/water", "all.hdf5#deep/water"])
def test_hdf5_equals_npy(tmp_path: Path, address: str) -> None:
    sets = [make_arrays(3, 3, 1), make_arrays(2, 3, 2)]
    write_system(tmp_path / "npy", sets, TYPES)
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "deep/water", sets, TYPES)
    stored = DataSet(f"{tmp_path}/{address}", NAMES, (*LABELS, FPARAM))
    assert stored.name(0) == f"{tmp_path}/all.hdf5#/deep/water"
    assert_same(stored.read(0, [4, 0, 2]), DataSet(tmp_path / "npy", NAMES, (*LABELS, FPARAM)).read(0, [4, 0, 2]))


def test_the_root_of_an_hdf5_file_can_be_a_system_beside_others(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "/", [make_arrays(2, 3)], TYPES)
        write_group(file, "/more", [make_arrays(5, 3)], TYPES)
    data = DataSet(tmp_path / "all.hdf5", NAMES, LABELS)
    assert data.n_frames.tolist() == [2, 5]
    data.close()
    assert data.read(1, [4]).coord.shape == (1, 3, 3)  # usable after its files were given back


def test_compressed_hdf5_and_more_files_than_stay_open(tmp_path: Path) -> None:
    for number in range(12):
        with h5py.File(tmp_path / f"{number:02d}.hdf5", "w") as file:
            write_group(file, "s", [make_arrays(2, 3, number)], TYPES)
            coord = file["s/set.000/coord.npy"][()]
            del file["s/set.000/coord.npy"]
            file.create_dataset("s/set.000/coord.npy", data=coord, compression="gzip", chunks=(1, 9))
    data = DataSet(sorted(tmp_path.iterdir()), NAMES)
    for number in range(12):
        expected = make_arrays(2, 3, number)["coord"][1]
        np.testing.assert_array_equal(data.read(number, [1]).coord.reshape(-1), expected)


def test_mixed_types_equal_plain_ones_and_keep_padding(tmp_path: Path) -> None:
    arrays = make_arrays(3, 3)
    real = np.array([[0, 1, 1], [1, 0, 1], [1, 1, -1]])
    write_system(tmp_path / "mixed", [{**arrays, "real_atom_types": real}], [0, 0, 0], names=("H", "O"))
    write_system(tmp_path / "plain", [arrays], TYPES, names=("H", "O"))
    data = DataSet(tmp_path, ["C", "O", "H"], LABELS)
    assert data.mixed.tolist() == [True, False]
    assert data.types(0) is None
    assert_same(data.read(0, [0]), data.read(1, [0]))
    assert data.read(0, [2, 1]).types.tolist() == [[1, 1, -1], [1, 2, 1]]


def test_mixed_types_in_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "s", [{**make_arrays(2, 3), "real_atom_types": [[0, 1, 1], [1, 1, -1]]}], [0, 0, 0])
    assert DataSet(tmp_path / "all.hdf5", NAMES, LABELS).read(0, [1, 0]).types.tolist() == [[1, 1, -1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("names", "model", "expected"),
    [
        (("O", "H"), ("O", "H"), [0, 1, 1]),
        (("O", "H"), ("H", "O"), [1, 0, 0]),
        (("O", "H", "Xe"), ("He", "H", "O"), [2, 1, 1]),  # Xe is named but not present
        (None, ("H", "O"), [0, 1, 1]),
    ],
)
def test_types_are_translated_into_the_models_type_map(
    tmp_path: Path, names: tuple[str, ...] | None, model: tuple[str, ...], expected: list[int]
) -> None:
    write_system(tmp_path / "a", [make_arrays(2, 3)], TYPES, names=names)
    data = DataSet(tmp_path / "a", model, LABELS)
    assert data.read(0, [0, 1]).types.tolist() == [expected, expected]
    types = data.types(0)
    assert types is not None
    assert types.tolist() == expected


def test_without_periodicity_there_is_no_cell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = make_arrays(2, 3)
    boxless = {name: values for name, values in arrays.items() if name != "box"}
    write_system(tmp_path / "a", [{**arrays, "box": np.zeros((2, 9))}], TYPES, nopbc=True)
    write_system(tmp_path / "b", [boxless], TYPES)
    write_system(tmp_path / "c", [arrays], TYPES)
    with caplog.at_level(logging.WARNING):
        data = DataSet(tmp_path, NAMES, LABELS)
    assert data.periodic.tolist() == [False, False, True]
    assert data.read(0, [0]).cell is None
    assert data.read(1, [0]).cell is None
    assert "1 system(s) have neither box.npy nor a nopbc file" in caplog.text


def test_take_keeps_systems_and_their_frames(tmp_path: Path) -> None:
    for number in range(4):
        simple_system(tmp_path / f"s{number}", n_frames=number + 1, seed=number)
    data = DataSet(tmp_path, NAMES, LABELS)
    some = data.take([3, 1])
    assert (len(some), some.n_frames.tolist(), some.name(1)) == (2, [4, 2], str(tmp_path / "s1"))
    np.testing.assert_array_equal(some.read(0, [2]).coord, data.read(3, [2]).coord)
    assert some.read(1, [0]).frames.tolist() == [4]


def test_no_file_stays_open_for_every_system(tmp_path: Path) -> None:
    for number in range(40):
        simple_system(tmp_path / f"s{number:02d}", n_frames=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    data = DataSet(tmp_path, NAMES, LABELS)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    for number in range(40):
        data.read(number, [0])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 128
    data.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_opening_reads_no_frame(tmp_path: Path) -> None:
    """A value that no training may use goes unnoticed until its frame is wanted."""
    arrays = make_arrays(3, 3)
    arrays["force"][2, 4] = np.nan
    write_system(tmp_path / "a", [arrays], TYPES)
    data = DataSet(tmp_path / "a", NAMES, LABELS)
    data.read(0, [0, 1])
    with pytest.raises(ValueError, match="frame 2"):
        data.read(0, [2])


def test_what_a_task_describes_is_what_it_gets(tmp_path: Path) -> None:
    """Names, shapes, types, repetitions and defaults of a task's own making, from npy, HDF5 and mixed types alike."""
    arrays = make_arrays(4, 3)
    arrays |= {"hessian": np.arange(4 * 81.0).reshape(4, 81), "charge": np.arange(4.0), "dipole": np.ones((4, 3))}
    mixed = {**arrays, "real_atom_types": np.tile([0, 1, 1], (4, 1))}
    write_system(tmp_path / "npy", [arrays], TYPES)
    write_system(tmp_path / "mixed", [mixed], [0, 0, 0])
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        write_group(file, "a", [arrays], TYPES)
    wanted = (
        Array("hessian", tail=(3, ATOMS, 3), atomic=True, precision="float32", required=True),
        Array("total_charge", ("charge.npy",), precision="int64"),
        Array("atom_pref", atomic=True, repeat=3),
        Array("dipole", tail=(3,), repeat=2),
        Array("spin", tail=(3,), atomic=True, default=0.5, repeat=2),
        Array("dos", tail=(7,)),
    )
    data = DataSet([tmp_path / "npy", tmp_path / "mixed", tmp_path / "all.hdf5"], NAMES, wanted)
    for system in range(3):
        batch = data.read(system, [2, 0])
        assert set(batch.labels) == {"hessian", "total_charge", "atom_pref", "dipole", "spin"}
        assert batch.filled == {"spin"}
        assert batch.labels["hessian"].dtype == np.float32
        np.testing.assert_array_equal(batch.labels["hessian"].reshape(2, 81), arrays["hessian"][[2, 0]])
        assert batch.labels["total_charge"].tolist() == [2, 0]
        assert batch.labels["total_charge"].dtype == np.int64
        np.testing.assert_array_equal(batch.labels["atom_pref"], np.repeat(arrays["atom_pref"][[2, 0], :, None], 3, 2))
        assert batch.labels["dipole"].shape == (2, 6)
        assert batch.labels["spin"].shape == (2, 3, 6)
        assert (batch.labels["spin"] == 0.5).all()
        np.testing.assert_array_equal(data.values(system, [1], "total_charge"), [1])


def test_an_array_of_another_shape_than_described_is_refused(tmp_path: Path) -> None:
    write_system(tmp_path / "a", [{**make_arrays(2, 3), "dos": np.zeros((2, 5))}], TYPES)
    with pytest.raises(DataError, match=r"dos\.npy: its shape is \(2, 5\): expected \(2, 7\).*numb_dos"):
        DataSet(tmp_path, NAMES, [Array("dos", tail=(7,), hint=" (model.fitting_net.numb_dos)")])


def test_files_of_a_few_numbers_are_read_once(tmp_path: Path) -> None:
    """Of many systems with a few frames each, a second visit to every file of energies would take as long again."""
    small, large = simple_system(tmp_path / "small", 4), simple_system(tmp_path / "large", 400)
    data = DataSet(tmp_path, NAMES, LABELS)
    expected = [np.load(system / "set.000" / "energy.npy") for system in (large, small)]
    (small / "set.000" / "energy.npy").unlink()
    np.testing.assert_array_equal(data.values(1, np.array([3, 0]), "energy"), expected[1][[3, 0]])
    np.testing.assert_array_equal(data.values(0, np.array([399, 7]), "energy"), expected[0][[399, 7]])


def test_systems_that_are_alike_are_described_alike_and_others_are_not(tmp_path: Path) -> None:
    for number, n_frames in enumerate((2, 2, 3, 2)):
        simple_system(tmp_path / f"s{number}", n_frames, seed=number)
    np.save(tmp_path / "s3" / "set.000" / "force.npy", np.zeros((2, 8)))
    with pytest.raises(DataError, match=r"s3/set\.000/force\.npy: its shape is \(2, 8\)"):
        DataSet(tmp_path, NAMES, LABELS)
    np.save(tmp_path / "s3" / "set.000" / "force.npy", np.zeros((2, 9), dtype=np.float32))
    data = DataSet(tmp_path, NAMES, LABELS)
    assert data.n_frames.tolist() == [2, 2, 3, 2]
    assert not data.read(3, [1]).labels["force"].any()
    assert data.read(2, [2]).labels["force"].any()
