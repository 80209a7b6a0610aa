"""Data of every format, made wrong: opened and read, or refused with a reason, in little memory."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import changed_bytes, explained, fuzzed

from lockstep.config import EnergyFittingConfig
from lockstep.data import DataSet, make_plan
from lockstep.tasks.energy.arrays import energy_arrays
from runs import tiny_system

ARRAYS = energy_arrays(EnergyFittingConfig())
FILES = ("coord.npy", "box.npy", "energy.npy", "force.npy", "virial.npy")
MOST_FRAMES = 50


def read_all(path: Path | str) -> None:
    """Open data and read what a run would: a plan, and every frame."""
    with explained():
        data = DataSet(str(path), ("A", "B"), ARRAYS)
        try:
            make_plan(data, "auto", auto_prob="prob_sys_size")
            for system in range(len(data)):
                data.read(system, np.arange(min(int(data.n_frames[system]), MOST_FRAMES)))
        finally:
            data.close()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_system(tmp_path_factory.mktemp("data") / "system", n_frames=3)
    np.save(path / "set.000" / "real_atom_types.npy", np.tile([0, 0, 1, 1, 0, 1], (3, 1)))
    return path


@cache
def content(path: Path) -> bytes:
    return path.read_bytes()


def spoilt(system: Path, file: str, data: bytes) -> None:
    """The system with one file's content changed, read; then as it was."""
    path = system / file
    content(path)
    try:
        path.write_bytes(data)
        read_all(system)
    finally:
        path.write_bytes(content(path))


@fuzzed(2)
@given(data=st.data(), file=st.sampled_from([f"set.000/{each}" for each in (*FILES, "real_atom_types.npy")]))
def test_damaged_arrays(data: st.DataObject, file: str, system: Path) -> None:
    spoilt(system, file, data.draw(changed_bytes(content(system / file), first=128)))


def npy(header: str, payload: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1", "replace") + b"\n"
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + payload


numbers = st.sampled_from(
    [0, 1, 3, 6, 18, -1, -3, 10**9, 2**31, 2**63, 10**30, "9" * 5000, "0x3", "1e3", "None", "(3,)"]
)
shapes = st.lists(numbers, max_size=3).map(lambda entries: "(" + "".join(f"{each}," for each in entries) + ")")
kinds = st.sampled_from(
    ["<f8", ">f8", "<f4", "<i8", "<u8", "|b1", "<c16", "|O", "<M8[ns]", "|V8", "<U4", "", "f", "<f99"]
)


@fuzzed(4)
@given(file=st.sampled_from(FILES), shape=shapes, kind=kinds, fortran=st.sampled_from(["False", "True", "2"]))
@example(file="coord.npy", shape="(-3, 18)", kind="<f8", fortran="False")
@example(file="coord.npy", shape="(" * 5000, kind="<f8", fortran="False")
@example(file="coord.npy", shape="()", kind="[('a', '<f8')]", fortran="False")
def test_wrong_headers_of_arrays(file: str, shape: str, kind: str, fortran: str, system: Path) -> None:
    header = f"{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}"
    spoilt(system, f"set.000/{file}", npy(header[:60_000], bytes(3 * 18 * 8)))


@pytest.mark.parametrize("length", [0, 1, 2**16 - 1, 2**31, 2**32 - 1])
def test_headers_of_wrong_lengths(length: int, system: Path) -> None:
    data = b"\x93NUMPY\x02\x00" + struct.pack("<I", length) + b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}"
    spoilt(system, "set.000/coord.npy", data)


words = st.sampled_from(["0", "1", "-1", "7", "1.5", "nan", "inf", "1e400", "9" * 30, "9" * 5000, "A", "\0", "#", "é"])


@fuzzed(8)
@given(file=st.sampled_from(["type.raw", "type_map.raw"]), text=st.lists(words, max_size=8).map(" ".join))
def test_wrong_words(file: str, text: str, system: Path) -> None:
    spoilt(system, file, text.encode())


def test_frames_that_are_all_padding(system: Path) -> None:
    path = system / "set.000" / "real_atom_types.npy"
    try:
        content(path)
        np.save(path, np.full((3, 6), -1))
        read_all(system)
    finally:
        path.write_bytes(content(path))


# ---------------------------------------------------------------- HDF5


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    system = tiny_system(folder / "system", n_frames=3)
    path = folder / "data.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("one")
        group["type.raw"] = np.loadtxt(system / "type.raw", dtype=int)
        group["type_map.raw"] = [b"A", b"B"]
        for name in FILES:
            group[f"set.000/{name}"] = np.load(system / "set.000" / name)
    return path


@fuzzed(8)
@given(data=st.data())
def test_damaged_containers(data: st.DataObject, container: Path) -> None:
    path = container.with_name("damaged.hdf5")
    path.write_bytes(data.draw(changed_bytes(content(container))))
    read_all(path)


def put(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if name in file or file.get(name, getlink=True) is not None:
            del file[name]
        if callable(value):
            value(file, name)
        else:
            file[name] = value

    return change


def huge(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (10**11, 18), "f8", chunks=(100, 18))


def empty(file: h5py.File, name: str) -> None:
    file.create_dataset(name, data=h5py.Empty("f8"))


COORD, TYPES = "one/set.000/coord.npy", "one/type.raw"
WRONG_CONTAINERS: dict[str, Callable[[h5py.File], None]] = {
    "a group in itself": lambda file: file.__setitem__("one/again", file["one"]),
    "the root in a group": lambda file: file.__setitem__("one/top", file["/"]),
    "a link to itself": put("loop", h5py.SoftLink("/loop")),
    "links in a circle": lambda file: (put("a", h5py.SoftLink("/b"))(file), put("b", h5py.SoftLink("/a"))(file))[0],
    "a link to nowhere": put("other", h5py.SoftLink("/nowhere")),
    "another file that is not there": put("other", h5py.ExternalLink("nowhere.h5", "/")),
    "types that link to themselves": put(TYPES, h5py.SoftLink(f"/{TYPES}")),
    "types as a group": put(TYPES, lambda file, name: file.create_group(name)),
    "types as text": put(TYPES, "0 0 1"),
    "types of any size": put(TYPES, huge),
    "no types": put(TYPES, empty),
    "coordinates as a group": put(COORD, lambda file, name: file.create_group(name)),
    "coordinates as text": put(COORD, "text"),
    "coordinates without numbers": put(COORD, empty),
    "coordinates of any size": put(COORD, huge),
    "coordinates in structures": put(COORD, np.zeros(3, [("x", "f8")])),
    "coordinates that link to themselves": put(COORD, h5py.SoftLink(f"/{COORD}")),
    "a set as an array": put("one/set.000", np.zeros(3)),
    "a set that is the system": put("one/set.000", h5py.SoftLink("/one")),
    "a set that links to itself": put("one/set.000", h5py.SoftLink("/one/set.000")),
}


@pytest.mark.parametrize("name", WRONG_CONTAINERS)
def test_wrong_containers(name: str, container: Path) -> None:
    path = container.with_name("wrong.hdf5")
    shutil.copy(container, path)
    with h5py.File(path, "a") as file:
        WRONG_CONTAINERS[name](file)
    read_all(path)
    read_all(f"{path}#/one")
