"""Every mistake ends with exit code 2 and one screen that names place, reason and remedy; no file changes."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from lockstep.checkpoint.format import Frozen, encode
from runs import dp, folder_state, tiny_input, tiny_system, write_input

Spoil = Callable[[Path], None]
ONE_SCREEN = 25
TD = "training__training_data__"


@dataclass
class Case:
    """A mistake: what is changed in a good run, and the words its message must have."""

    words: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    spoil: Spoil = lambda folder: None
    arguments: tuple[str, ...] = ()


def key(path: str, value: Any, *words: str, **more: Any) -> Case:
    return Case((path.replace("__", "."), *words), {path: value, **more})


def raw_input(content: bytes | str, *words: str) -> Case:
    data = content.encode() if isinstance(content, str) else content
    return Case(("input.json", *words), spoil=lambda folder: (folder / "input.json").write_bytes(data) and None)


def array(name: str, change: Callable[[np.ndarray], np.ndarray], *words: str) -> Case:
    def spoil(folder: Path) -> None:
        file = folder / "train" / "set.000" / f"{name}.npy"
        np.save(file, change(np.load(file)), allow_pickle=True)

    return Case((f"train/set.000/{name}.npy", *words), spoil=spoil)


def poked(name: str, value: float, *words: str) -> Case:
    def change(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values.reshape(len(values), -1)[2, 0] = value
        return values

    return array(name, change, *words)


def text_file(name: str, text: str, *words: str) -> Case:
    return Case((f"train/{name}", *words), spoil=lambda folder: (folder / "train" / name).write_text(text) and None)


def file_case(spoil: Spoil, *words: str, **changes: Any) -> Case:
    return Case(words, changes, spoil)


def cut(folder: Path) -> None:
    file = folder / "train" / "set.000" / "coord.npy"
    file.write_bytes(file.read_bytes()[:-100])


def flat_cells(folder: Path) -> None:
    file = folder / "train" / "set.000" / "box.npy"
    cells = np.load(file).reshape(-1, 3, 3)
    cells[1, 2] = cells[1, 0] + cells[1, 1]
    np.save(file, cells.reshape(-1, 9))


class Trap:
    """Unpickling it leaves a file behind."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, ("trap-was-sprung", "w"))


def pickled_model(folder: Path) -> None:
    for name in ("model.pt", "model.pkl", "model.ckpt-1.safetensors", "model.dp", "model.ckpt.pt"):
        (folder / name).write_bytes(pickle.dumps(Trap()))


def torch_model(folder: Path) -> None:
    import torch

    torch.save({"x": Trap()}, folder / "model.pt")


def no_frames(folder: Path) -> None:
    for file in (folder / "train" / "set.000").iterdir():
        np.save(file, np.load(file)[:0])


def damaged_hdf5(folder: Path) -> None:
    (folder / "data.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50))


def some_hdf5(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        file["cu/type.raw"] = [0]


def empty_hdf5_set(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        file["cu/type.raw"] = [0, 0]
        file.create_group("cu/set.000")


def as_folder(name: str) -> Spoil:
    return lambda folder: (folder / name).mkdir()


def as_file(name: str) -> Spoil:
    return lambda folder: (folder / name).write_text("mine") and None


def no_system(folder: Path) -> None:
    (folder / "empty").mkdir()


def some_sets(folder: Path) -> None:
    target = folder / "train" / "set.001"
    target.mkdir()
    for name in ("coord", "box", "energy"):
        np.save(target / f"{name}.npy", np.load(folder / "train" / "set.000" / f"{name}.npy"))


def removed(name: str) -> Spoil:
    return lambda folder: (folder / "train" / name).unlink()


def no_labels(folder: Path) -> None:
    for name in ("energy", "force"):
        (folder / "train" / "set.000" / f"{name}.npy").unlink()


def mixed_types(folder: Path) -> None:
    np.save(folder / "train" / "set.000" / "real_atom_types.npy", np.full((6, 6), 7))


def padding(folder: Path) -> None:
    np.save(folder / "train" / "set.000" / "real_atom_types.npy", np.full((6, 6), -1))


def crafted_model(change: Callable[[h5py.File], object]) -> Case:
    """A file that looks like a model of DeePMD-kit, and is none."""

    def spoil(folder: Path) -> None:
        with h5py.File(folder / "old.dp", "w") as file:
            file["numbers"] = np.zeros((2, 2))
            file.attrs["json"] = json.dumps({"model": {"@variables": {"out_bias": "/numbers"}}})
            change(file)

    return Case(("old.dp", "remedy"), spoil=spoil, arguments=("input.json", "--init-frz-model", "old.dp"))


def relinked(file: h5py.File) -> None:
    del file["numbers"]
    file["numbers"] = h5py.SoftLink("/numbers")


def boundless(file: h5py.File) -> None:
    del file["numbers"]
    file.create_dataset("numbers", (10**12,), "f8")


def described(text: str) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__("json", text)


def crafted_checkpoint(header: bytes, *words: str, length: int | None = None) -> Case:
    """A file that looks like a checkpoint, and is none."""
    data = struct.pack("<Q", len(header) if length is None else length) + header
    return Case(
        ("old.safetensors", *words),
        spoil=lambda folder: (folder / "old.safetensors").write_bytes(data) and None,
        arguments=("input.json", "--restart", "old.safetensors"),
    )


def signed_checkpoint(info: Any, *words: str) -> Case:
    """A checkpoint with a checksum that is right."""

    def spoil(folder: Path) -> None:
        (folder / "old.safetensors").write_bytes(encode(Frozen(1, {}, json.dumps(info))))

    return Case(("old.safetensors", *words), spoil=spoil, arguments=("input.json", "--restart", "old.safetensors"))


def circular_hdf5(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        file["cu/again"] = file.create_group("cu/more")
        file["cu/more/cu"] = file["cu"]


def boundless_hdf5(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        file["cu/type.raw"] = [0, 0]
        file.create_dataset("cu/set.000/coord.npy", (10**11, 6), "f8", chunks=(100, 6))


def header_of_minus(folder: Path) -> None:
    with (folder / "train" / "set.000" / "coord.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (-6, 18)})


CASES: dict[str, Case] = {
    # the input file itself
    "no such input": Case(("nothing.json", "remedy"), arguments=("nothing.json",)),
    "folder as input": Case(("train", "folder"), arguments=("train",)),
    "empty input": raw_input("", "empty"),
    "binary input": raw_input(bytes(range(256)), "UTF-8"),
    "npy as input": Case(("coord.npy",), arguments=("train/set.000/coord.npy",)),
    "not UTF-8": raw_input('{"model": "é"}'.encode("latin-1"), "UTF-8"),
    "missing comma": raw_input('{"model": {}\n  "loss": {}}', "line 2", "column 3"),
    "unclosed": raw_input('{"model": {', "line 1"),
    "duplicate key": raw_input('{"loss": {},\n "loss": {}}', "loss", "lines 1 and 2", "keep one"),
    "a list": raw_input("[1, 2]", "object"),
    "NaN in JSON": raw_input(
        json.dumps(tiny_input(learning_rate__start_lr=float("nan"))), "line 1, column", "NaN is not a number"
    ),
    # keys and values
    "unknown key": key("training__numb_stepz", 5, "unknown key", "numb_steps"),
    "not supported yet": key("training__enable_compile", True, "not supported yet"),
    "other descriptor": Case(("DPA-3", "not installed", "lockstep-dp[deepmd]"), {"model__descriptor__type": "dpa3"}),
    "steps and epochs": key("training__numb_steps", 5, "numb_epoch", training__numb_epoch=2),
    "no length": Case(("training.numb_steps", "numb_epoch"), {"training__numb_steps": None}),
    "words for a number": key("training__numb_steps", "many", "integer"),
    "number in quotes": key("model__descriptor__rcut", "6.0", "number", "quotes"),
    "negative width": key("model__descriptor__neuron", [4, -8], "-8", "at least 1"),
    "zero steps": key("training__numb_steps", 0, "at least 1"),
    "negative cutoff": key("model__descriptor__rcut", -6.0, "at least 0.01"),
    "switch beyond cutoff": key("model__descriptor__rcut_smth", 4.0, "rcut", "smaller"),
    "sel of wrong length": key("model__descriptor__sel", [24], "1 entries", "2 types"),
    "sel of nonsense": key("model__descriptor__sel", "auto:abc", "auto:FACTOR"),
    "sel by counting, counting skipped": Case(
        ("model.descriptor.sel", "skip-neighbor-stat"),
        {"model__descriptor__sel": "auto"},
        arguments=("input.json", "--skip-neighbor-stat"),
    ),
    "auto:abc": key(TD + "batch_size", "auto:abc", "auto:N"),
    "batch sizes of wrong length": key(TD + "batch_size", [1, 2], "2 entries", "1 system"),
    "probabilities of wrong length": key(TD + "sys_probs", [0.5, 0.5], "2 entries", "1 system"),
    "probabilities beyond one": key(TD + "sys_probs", [1.5], "add up"),
    "block of no system": key(TD + "auto_prob", "prob_sys_size;0:9:1", "0:9:1"),
    "filter leaves nothing": key(TD + "batch_size", "filter:2", "no system is left"),
    "warm-up as long as the run": key("learning_rate__warmup_steps", 12, "numb_steps"),
    "warm-up longer than the epochs": key(
        "learning_rate__warmup_steps", 100, "100 steps", training__numb_steps=None, training__numb_epoch=2
    ),
    "stop above start": key("learning_rate__stop_lr", 1.0, "start_lr"),
    "nothing to train for": Case(
        ("loss", "prefactors"),
        {f"loss__{end}_pref_{x}": 0 for end in ("start", "limit") for x in "ef"},
    ),
    "statistics to be read from nowhere": key(
        "training__stat_file_mode", "read", "stat.hdf5", training__stat_file="stat.hdf5"
    ),
    "all layers frozen": Case(
        ("trainable",), {"model__descriptor__trainable": False, "model__fitting_net__trainable": False}
    ),
    # the data
    "no such system": key(TD + "systems", ["nowhere"], "nowhere", "no such system"),
    "folder without systems": Case(("empty", "type.raw", "remedy"), {TD + "systems": ["empty"]}, spoil=no_system),
    "truncated": file_case(cut, "train/set.000/coord.npy", "truncated"),
    "pickled objects": array("coord", lambda a: np.array([Trap()], dtype=object), "object"),
    "text in npy": array("energy", lambda a: np.array(["x"] * len(a)), "U1"),
    "NaN coordinate": poked("coord", np.nan, "nan", "frame 2", "atom 0"),
    "NaN force": poked("force", np.nan, "nan", "frame 2"),
    "infinite energy": poked("energy", np.inf, "inf", "frame 2"),
    "NaN cell": poked("box", np.nan, "nan", "frame 2"),
    "flat cell": file_case(flat_cells, "train/set.000/box.npy", "flat", "frame 1"),
    "too few forces": array("force", lambda a: a[:, :-3], "shape"),
    "too few frames": array("energy", lambda a: a[:-1], "5 frames", "6"),
    "coordinates of other atoms": array("coord", lambda a: a[:, :-3], "shape", "6 atoms"),
    "type out of range": text_file("type.raw", "0 0 1 1 0 7", "type 7", "out of range"),
    "negative type": text_file("type.raw", "0 0 1 1 0 -1", "negative"),
    "types in words": text_file("type.raw", "A A B B A B", "type numbers"),
    "no atoms": text_file("type.raw", "", "no atoms"),
    "foreign element": Case(
        ("train/type.raw", "Xe", "type_map"),
        spoil=lambda folder: (folder / "train" / "type_map.raw").write_text("A Xe") and None,
    ),
    "mixed type out of range": file_case(mixed_types, "real_atom_types.npy", "type 7", "out of range"),
    "no coordinates": file_case(removed("set.000/coord.npy"), "train/set.000", "coord.npy is missing"),
    "no frames": file_case(no_frames, "train", "no frames"),
    "sets that differ": file_case(some_sets, "set.001", "force.npy"),
    "parameters missing": Case(("fparam.npy", "train"), {"model__fitting_net__numb_fparam": 2}),
    "damaged HDF5": file_case(damaged_hdf5, "data.hdf5", "HDF5", **{TD + "systems": ["data.hdf5"]}),
    "no such group": file_case(some_hdf5, "data.hdf5", "/ag", **{TD + "systems": ["data.hdf5#/ag"]}),
    "HDF5 set without coordinates": file_case(empty_hdf5_set, "coord.npy", **{TD + "systems": ["data.hdf5#/cu"]}),
    "text file as system": Case(("input.json", "HDF5"), {TD + "systems": ["input.json"]}),
    "no validation data": Case(("nowhere",), {"training__validation_data": {"systems": ["nowhere"]}}),
    "no energies, no forces": Case(
        ("train", "energy", "force"),
        spoil=no_labels,
    ),
    # absurd numbers and letters
    "more steps than can be counted": key("training__numb_steps", 1e30, "at most 1e+15"),
    "more epochs than can be counted": key("training__numb_epoch", 1e300, "at most 1e+09", training__numb_steps=None),
    "a cutoff of nothing": key("model__descriptor__rcut", 1e-300, "at least 0.01", model__descriptor__rcut_smth=0),
    "a cutoff of everything": key("model__descriptor__rcut", 1e300, "at most 1000"),
    "a cutoff of too many images": key("model__descriptor__rcut", 900.0, "pairs within", "shorter cutoff"),
    "a layer without end": key("model__fitting_net__neuron", [1e12], "at most 100000"),
    "layers beyond all memory": Case(
        ("model", "100000, 100000", "GB of memory are free", "narrower"),
        {"model__fitting_net__neuron": [100_000, 100_000, 100_000]},
    ),
    "an axis without end": key("model__descriptor__axis_neuron", 1e18, "at most 100000"),
    "slots without end": key("model__descriptor__sel", [1e15, 4], "up to 1000000"),
    "a factor without end": key("model__descriptor__sel", "auto:" + "9" * 400, "from 1 to 100"),
    "a batch without end": key(TD + "batch_size", 1e40, "auto:N"),
    "a batch of too many digits": key(TD + "batch_size", "auto:" + "9" * 5000, "auto:N"),
    "a block without end": key(TD + "auto_prob", "prob_sys_size;0:1:1e400", "not a finite number"),
    "a timeout without end": key("training__timeout", 1e300, "at most 1e+08"),
    "a seed without end": key("training__seed", 2**64, "less than"),
    "more parameters than a frame": key("model__fitting_net__numb_fparam", 10**9, "at most 100000"),
    "NUL in a system": key(TD + "systems", ["tra\0in"], "NUL"),
    "NUL in a file name": key("training__disp_file", "lcurve\0.out", "NUL"),
    "half a character": key("training__save_ckpt", "model\ud800", "half a character"),
    "a name too long": key(TD + "systems", ["x" * 5000], "no such system"),
    "a file name too long": Case(("training.disp_file",), {"training__disp_file": "x" * 5000}),
    "a log's name too long": Case(("--log-path",), arguments=("input.json", "-l", "log" * 2000)),
    "a name of defaults too long": Case(("--output",), arguments=("input.json", "-o", "out" * 2000)),
    "a timeline's name too long": Case(("--timeline",), arguments=("input.json", "--timeline", "out" * 2000)),
    "a model's name too long": Case(("old",), arguments=("input.json", "--init-frz-model", "old" * 2000)),
    "a checkpoint's name too long": Case(("old",), arguments=("input.json", "--restart", "old" * 2000)),
    "brackets without end": raw_input("[" * 100_000, "nested too deeply"),
    "digits without end": raw_input('{"training": {"numb_steps": ' + "9" * 10_000 + "}}", "cannot be parsed"),
    "sections in sections": raw_input('{"model":' * 60 + "1" + "}" * 60, "nested too deeply"),
    # crafted files
    "frames of padding alone": file_case(padding, "real_atom_types.npy", "no atoms", "padding"),
    "types of too many digits": text_file("type.raw", "0 0 1 1 0 " + "9" * 40, "type numbers"),
    "types of far too many digits": text_file("type.raw", "0 0 1 1 0 " + "9" * 5000, "type numbers"),
    "fewer frames than none": file_case(header_of_minus, "coord.npy", "(-6, 18)"),
    "data linked in a circle": file_case(circular_hdf5, "data.hdf5", "type.raw", **{TD + "systems": ["data.hdf5"]}),
    "data of any size": file_case(boundless_hdf5, "coord.npy", "bytes", **{TD + "systems": ["data.hdf5"]}),
    "a model of any size": crafted_model(boundless),
    "a model linked to itself": crafted_model(relinked),
    "a model of deep JSON": crafted_model(described('{"a":' * 5000 + "1" + "}" * 5000)),
    "a model of many digits": crafted_model(described('{"model": ' + "9" * 10_000 + "}")),
    "a model in lists": crafted_model(described('{"model": [["type", "standard"]]}')),
    "a model that is a list": crafted_model(described("[]")),
    "a checkpoint of deep JSON": crafted_checkpoint(b'{"a":' * 20_000, "header"),
    "a checkpoint longer than itself": crafted_checkpoint(b"{}", "header", length=2**63),
    "a checkpoint in lists": crafted_checkpoint(b'{"__metadata__": []}', "header"),
    "a checkpoint of a late version": crafted_checkpoint(
        b'{"__metadata__": {"format": "lockstep-checkpoint", "version": "' + b"9" * 5000 + b'"}}', "version 999"
    ),
    "a checkpoint of no step": signed_checkpoint({"step": "one"}, "not the number of a step"),
    "a checkpoint of too many steps": signed_checkpoint({"step": 10**300}, "not the number of a step"),
    "a checkpoint of a list": signed_checkpoint([1, 2], "cannot be understood"),
    "a checkpoint of a listed input": signed_checkpoint({"step": 1, "input": []}, "input is not an object"),
    # files of the run
    "no such checkpoint": Case(
        ("model.ckpt", "no such checkpoint"), arguments=("input.json", "--restart", "model.ckpt")
    ),
    "no such initial model": Case(("old.ckpt",), arguments=("input.json", "--init-model", "old.ckpt")),
    "no such frozen model": Case(("old.dp",), arguments=("input.json", "--init-frz-model", "old.dp")),
    "restart from a folder of data": Case(("train", "no checkpoint"), arguments=("input.json", "-r", "train")),
    "restart from text": Case(("input.json",), arguments=("input.json", "-r", "input.json")),
    "init from text": Case(("input.json",), arguments=("input.json", "-i", "input.json")),
    "frozen from text": Case(("input.json",), arguments=("input.json", "-f", "input.json")),
    **{
        f"pickle as {option} {name}": Case((name,), spoil=pickled_model, arguments=("input.json", option, name))
        for option in ("--restart", "--init-model", "--init-frz-model")
        for name in ("model.pt", "model.pkl", "model.ckpt-1.safetensors", "model.dp", "model.ckpt")
    },
    "torch file as checkpoint": Case(
        ("model.pt", "pickle"), spoil=torch_model, arguments=("input.json", "--restart", "model.pt")
    ),
    "log is the input": Case(("--log-path", "input.json", "INPUT"), arguments=("input.json", "-l", "./input.json")),
    "log is the learning curve": Case(
        ("training.disp_file", "lcurve.out", "--log-path"), arguments=("input.json", "-l", "lcurve.out")
    ),
    "log is where the time goes": Case(("--log-path", "budget.jsonl"), arguments=("input.json", "-l", "budget.jsonl")),
    "log is a checkpoint": Case(
        ("--log-path", "model.ckpt-4.safetensors", "save_ckpt"),
        arguments=("input.json", "-l", "model.ckpt-4.safetensors"),
    ),
    "log is the pointer": Case(("--log-path", "checkpoint"), arguments=("input.json", "-l", "checkpoint")),
    "defaults are the input": Case(("--output", "input.json", "INPUT"), arguments=("input.json", "-o", "input.json")),
    "defaults are the log": Case(
        ("--output", "a.out", "--log-path"), arguments=("input.json", "-o", "a.out", "-l", "a.out")
    ),
    "timeline is the input": Case(("--timeline", "input.json"), arguments=("input.json", "--timeline", "input.json")),
    "learning curve is the defaults": key("training__disp_file", "out.json", "--output"),
    "learning curve is the input": key("training__disp_file", "input.json", "INPUT"),
    "learning curve is the prefix": key("training__disp_file", "model.ckpt", "training.save_ckpt"),
    "learning curve is the link": key("training__disp_file", "model.ckpt.safetensors", "training.save_ckpt"),
    "statistics are the learning curve": key("training__stat_file", "lcurve.out", "training.disp_file"),
    "checkpoints below a file": Case(("mine/model", "is a file", "save_ckpt"), {"training__save_ckpt": "mine/model"}),
    "learning curve below a file": Case(
        ("mine/lcurve.out", "is a file", "disp_file"), {"training__disp_file": "mine/lcurve.out"}
    ),
    "learning curve is a folder": key("training__disp_file", "train", "train", "folder"),
    "defaults below a file": Case(("mine/out.json",), arguments=("input.json", "-o", "mine/out.json")),
    "defaults are a folder": Case(("train", "folder"), arguments=("input.json", "-o", "train")),
    "log below a file": Case(("mine/log",), arguments=("input.json", "-l", "mine/log")),
    "log is a folder": Case(("train",), arguments=("input.json", "-l", "train")),
    "statistics below a file": Case(("mine/stat.hdf5", "is a file"), {"training__stat_file": "mine/stat.hdf5"}),
    "statistics not HDF5": key("training__stat_file", "mine.hdf5", "mine.hdf5", "remove"),
    "events below a file": key(
        "training__tensorboard_log_dir", "mine/events", "mine/events", training__tensorboard=True
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_folder(path: Path) -> None:
    """A folder in which a good run would work, and in which an earlier run has left its files."""
    tiny_system(path / "train")
    as_file("mine")(path)
    as_file("mine.hdf5")(path)
    for name in ("lcurve.out", "out.json"):
        (path / name).write_text("of an earlier run")


def prepared(folder: Path, case: Case) -> list[str]:
    write_input(folder, tiny_input(**case.changes))
    case.spoil(folder)
    return ["train", *(case.arguments or ("input.json",))]


@pytest.mark.parametrize("name", CASES)
def test_mistake_is_explained_and_nothing_is_touched(
    name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    arguments = prepared(folder, case)
    before = folder_state(folder)
    code = dp(*arguments, "-v", "WARNING")
    output = capfd.readouterr()
    assert code == 2, output.err
    assert folder_state(folder) == before
    assert "Traceback" not in output.err
    assert len(output.err.splitlines()) <= ONE_SCREEN
    assert "dp train: error:" in output.err
    missing = [word for word in case.words if word not in output.err]
    assert not missing, output.err
    # Either advice, or a reason that is one.
    assert any(word in output.err for word in ("remedy:", "expected", "must ", "needs ")), output.err


@pytest.mark.parametrize("name", ["missing comma", "truncated", "no such checkpoint", "flat cell"])
def test_debug_shows_where_the_error_came_from(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert dp(*prepared(folder, CASES[name]), "-v", "DEBUG") == 2
    assert "Traceback" in capfd.readouterr().err


def test_a_hundred_mistakes_are_made_and_each_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text()
    assert len(CASES) >= 100
    assert [name for name in CASES if f"**{name}**" not in page] == [], "run make mistakes"
