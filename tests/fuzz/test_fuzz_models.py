"""Models and checkpoints of every format, made wrong: loaded, or refused with a reason, in little memory."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import ODD_VALUES, Started, changed_bytes, changed_trees, explained, fuzzed, places

from lockstep.checkpoint.format import Frozen, encode, read_checkpoint
from lockstep.interop.deepmd import save_dp
from lockstep.interop.loading import load_potential
from lockstep.training.loop import Trainer
from potentials import variant_potential
from runs import dp, tiny_input, tiny_system, write_input

PYTORCH = Path(__file__).parents[1] / "interop" / "reference" / "pytorch"
MODELS = ("one_side", "radial", "strip", "hybrid", "parameters")


def load(path: Path) -> None:
    with explained():
        load_potential(path)


# ---------------------------------------------------------------- .dp


@cache
def exchange_file(name: str) -> tuple[bytes, dict[str, Any], dict[str, np.ndarray]]:
    """A model's file, its tree, and its arrays by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.dp"
        save_dp(variant_potential(name), path)
        with h5py.File(path) as file:
            return path.read_bytes(), json.loads(file.attrs["json"]), {key: file[key][()] for key in file}


def write_exchange(path: Path, tree: Any, arrays: dict[str, Any], change: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        # Longer texts than an attribute may have are another way for a file to be wrong.
        text = json.dumps(tree)
        if len(text) < 60_000:
            file.attrs["json"] = text
        change(file)


def nothing(file: h5py.File) -> None:
    pass


@fuzzed(2)
@given(
    case=st.sampled_from(MODELS).flatmap(
        lambda name: st.tuples(st.just(name), changed_trees(exchange_file(name)[1]["model"]))
    )
)
def test_descriptions_with_wrong_values(case: tuple[str, Any], tmp_path: Path) -> None:
    name, tree = case
    path = tmp_path / "model.dp"
    write_exchange(path, {**exchange_file(name)[1], "model": tree}, exchange_file(name)[2], nothing)
    load(path)


def instead(make: Callable[[h5py.File, str], None]) -> Callable[[str], Callable[[h5py.File], None]]:
    def of(name: str) -> Callable[[h5py.File], None]:
        def change(file: h5py.File) -> None:
            del file[name]
            make(file, name)

        return change

    return of


def attribute(value: Any) -> Callable[[str], Callable[[h5py.File], None]]:
    return lambda name: lambda file: file.attrs.__setitem__("json", value)


WRONG_ARRAYS = {
    "gone": instead(lambda file, name: None),
    "huge": instead(lambda file, name: file.create_dataset(name, (10**12,), "f8")),
    "huge in chunks": instead(lambda file, name: file.create_dataset(name, (10**7, 10**7), "f8", chunks=(10, 10))),
    "packed": instead(lambda file, name: file.create_dataset(name, data=np.zeros(10**6), compression="gzip")),
    "a group": instead(lambda file, name: file.create_group(name) and None),
    "a link to itself": instead(lambda file, name: file.__setitem__(name, h5py.SoftLink(f"/{name}"))),
    "a link in a circle": instead(
        lambda file, name: (
            file.__setitem__(name, h5py.SoftLink("/other")),
            file.__setitem__("other", h5py.SoftLink(f"/{name}")),
        )
    ),
    "in another file": instead(lambda file, name: file.__setitem__(name, h5py.ExternalLink("/nowhere.h5", "/x"))),
    "the file itself": instead(lambda file, name: file.__setitem__(name, file["/"])),
    "text": instead(lambda file, name: file.__setitem__(name, "text")),
    "texts": instead(lambda file, name: file.__setitem__(name, ["a", "b"])),
    "complex": instead(lambda file, name: file.__setitem__(name, np.ones((2, 2), complex))),
    "a structure": instead(lambda file, name: file.__setitem__(name, np.zeros(2, [("a", "f8"), ("b", "i4")]))),
    "references": instead(lambda file, name: file.__setitem__(name, file.ref)),
    "nothing at all": instead(lambda file, name: file.create_dataset(name, data=h5py.Empty("f8")) and None),
    "no numbers": instead(lambda file, name: file.__setitem__(name, np.zeros((0, 4)))),
    "one number": instead(lambda file, name: file.__setitem__(name, 1.0)),
    "not numbers": instead(lambda file, name: file.__setitem__(name, np.full((3, 4), np.nan))),
    "deep JSON": attribute('{"a":' * 5000),
    "deep JSON that ends": attribute('{"a":' * 5000 + "1" + "}" * 5000),
    "long digits": attribute('{"model": ' + "9" * 10_000 + "}"),
    "a list": attribute("[1, 2]"),
    "a number": attribute(7),
    "numbers": attribute(np.zeros(3)),
    "no text": attribute(b"\xff\xfe"),
    "lists for dictionaries": attribute('{"model": [["type", "standard"]], "@variables": []}'),
    "variables that are none": attribute('{"model": {"@variables": {"a": 5, "b": {"c": 1}, "d": "/"}}}'),
    "the same array a million times": lambda name: (
        lambda file: file.attrs.__setitem__("json", json.dumps({"model": {"@variables": {"a": [name] * 5000}}}))
    ),
}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
def test_wrong_arrays(wrong: str, tmp_path: Path) -> None:
    _, tree, arrays = exchange_file("one_side")
    for name in list(arrays)[:3]:
        write_exchange(tmp_path / "model.dp", tree, arrays, WRONG_ARRAYS[wrong](name))
        load(tmp_path / "model.dp")


@fuzzed(2)
@given(content=st.sampled_from(MODELS[:2]).flatmap(lambda name: changed_bytes(exchange_file(name)[0])))
def test_damaged_exchange_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.dp"
    path.write_bytes(content)
    load(path)


# ---------------------------------------------------------------- checkpoints


@cache
def checkpoint() -> tuple[bytes, dict[str, Any], dict[str, torch.Tensor]]:
    """A checkpoint of a real run: the file, its JSON, its tensors."""
    import os

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        tiny_system(Path(folder) / "train")
        write_input(Path(folder), tiny_input(training__numb_steps=2, training__disp_avg=True))
        os.chdir(folder)
        try:
            assert dp("train", "input.json", "-v", "ERROR") == 0
        finally:
            os.chdir(here)
        path = Path(folder) / "model.ckpt-2.safetensors"
        found = read_checkpoint(path)
        return path.read_bytes(), {"step": found.step, **found.info}, dict(found.tensors)


def written(path: Path, info: Any, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A checkpoint with the checksum that belongs to it."""
    path.write_bytes(encode(Frozen(2, checkpoint()[2] if tensors is None else tensors, json.dumps(info))))
    return path


@fuzzed(4)
@given(info=st.deferred(lambda: changed_trees(checkpoint()[1])))
@example(info=[])
@example(info={})
@example(info={"step": "9" * 5000})
@example(info={"step": 10**4000})
@example(info={"step": 1, "input": []})
def test_checkpoints_with_wrong_values(info: Any, tmp_path: Path) -> None:
    load(written(tmp_path / "model.safetensors", info))


@st.composite
def wrong_headers(draw: st.DrawFn) -> bytes:
    """A checkpoint whose header says something else about its tensors, of the right or another length."""
    data = checkpoint()[0]
    (length,) = struct.unpack("<Q", data[:8])
    header = draw(changed_trees(json.loads(data[8 : 8 + length])))
    text = json.dumps(header).encode()
    said = draw(st.sampled_from([len(text)] * 8 + [0, 1, len(text) - 1, len(text) + 1, 10**9, 2**63, 2**64 - 1]))
    return struct.pack("<Q", said) + text + data[8 + length :]


DEEP = b'{"a":' * 20_000


@fuzzed(2)
@given(content=wrong_headers())
@example(content=struct.pack("<Q", len(DEEP)) + DEEP)
@example(content=struct.pack("<Q", 2**62) + b"{}")
@example(content=struct.pack("<Q", 5010) + b'{"a": ' + b"9" * 5000 + b"   }")
@example(content=struct.pack("<Q", 20) + b'{"__metadata__": []}')
def test_wrong_headers(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    load(path)


@fuzzed(4)
@given(content=st.deferred(lambda: changed_bytes(checkpoint()[0])))
def test_damaged_checkpoints(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    load(path)


WRONG_TENSORS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda tensor: tensor.reshape(-1)[:-1],
    lambda tensor: tensor[None],
    lambda tensor: torch.zeros(0),
    lambda tensor: torch.tensor(True),
    lambda tensor: tensor.to(torch.complex64),
    lambda tensor: tensor.to(torch.int8),
    lambda tensor: tensor.to(torch.float8_e4m3fn),
    lambda tensor: torch.full_like(tensor, torch.nan),
    torch.zeros_like,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    tiny_system(path / "train")
    write_input(path, tiny_input(training__numb_steps=4, training__disp_avg=True))
    return path


def started(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Let a run begin from a file: it comes to its first step, or ends with a message."""

    def stop(self: Trainer) -> None:
        raise Started

    monkeypatch.chdir(folder)
    monkeypatch.setattr(Trainer, "run", stop)
    for option in ("--restart", "--init-model"):
        try:
            code = dp("train", "input.json", option, str(path), "-v", "ERROR")
        except Started:
            continue
        finally:
            said = capfd.readouterr().err
        assert code == 2, said
        assert "Traceback" not in said


@fuzzed(40)
@given(data=st.data())
def test_runs_from_wrong_checkpoints(
    data: st.DataObject, folder: Path, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    _, info, tensors = checkpoint()
    if data.draw(st.booleans()):
        info = data.draw(
            changed_trees({key: info[key] for key in ("step", "stream", "pace", "spectral")}).map(
                lambda part: {**checkpoint()[1], **part}
            )
        )
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        change = data.draw(st.sampled_from([None, *WRONG_TENSORS]))
        tensors = {key: value for key, value in tensors.items() if key != name}
        if change is not None:
            tensors[name] = change(checkpoint()[2][name]).contiguous()
    started(folder, written(tmp_path / "model.safetensors", info, tensors), monkeypatch, capfd)


# ---------------------------------------------------------------- .pt and .pth


@cache
def pytorch_checkpoint() -> Any:
    return torch.load(PYTORCH / "se_e2_a.pt", weights_only=True)


ODD_TENSORS = [
    torch.zeros(0),
    torch.ones(1).expand(10**9),
    torch.full((3, 4), torch.nan),
    torch.zeros(2, dtype=torch.bool),
]


@st.composite
def wrong_pytorch(draw: st.DrawFn) -> Any:
    """The contents of a checkpoint, with a description or a tensor that is another."""
    loaded = dict(pytorch_checkpoint())
    state = dict(loaded["model"])
    if draw(st.booleans()):
        state["_extra_state"] = draw(changed_trees(state["_extra_state"]))
    for name in draw(st.lists(st.sampled_from(sorted(state)), max_size=2)):
        state.pop(name, None)
        if draw(st.booleans()):
            state[draw(st.sampled_from([name, name, name, "", 3]))] = draw(st.sampled_from([*ODD_TENSORS, *ODD_VALUES]))
    loaded["model"] = draw(st.sampled_from([state] * 8 + [[], None, 7, {}, "text"]))
    return draw(st.sampled_from([loaded] * 8 + [state, [], None, "text"]))


@fuzzed(4)
@given(contents=wrong_pytorch())
def test_pytorch_checkpoints_with_wrong_values(contents: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(contents, path)
    load(path)


@fuzzed(4)
@given(data=st.data(), name=st.sampled_from(["se_e2_a.pt", "se_e2_a.pth"]))
def test_damaged_pytorch_files(data: st.DataObject, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data.draw(changed_bytes((PYTORCH / name).read_bytes())))
    load(path)


@cache
def members(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(PYTORCH / name) as archive:
        return {each: archive.read(each) for each in archive.namelist()}


@fuzzed(2)
@given(data=st.data(), name=st.sampled_from(["se_e2_a.pt", "se_e2_a.pth", "hybrid.pth"]))
def test_archives_of_damaged_members(data: st.DataObject, name: str, tmp_path: Path) -> None:
    """The archive is whole, with checksums that are right; what is in it is not."""
    parts = dict(members(name))
    pickles = [each for each in parts if each.endswith("/data.pkl")]
    for each in data.draw(st.lists(st.sampled_from(pickles * 3 + sorted(parts)), min_size=1, max_size=2)):
        parts[each] = data.draw(changed_bytes(parts[each]))
    packed = data.draw(st.sampled_from([zipfile.ZIP_STORED] * 5 + [zipfile.ZIP_DEFLATED]))
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", packed) as archive:
        for each, content in parts.items():
            archive.writestr(each, content)
    load(path)


def test_a_pickle_that_ends_in_the_middle_of_a_number(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for each, content in members("se_e2_a.pt").items():
            archive.writestr(each, b"\x80\x02}q\x00(X" if each.endswith("/data.pkl") else content)
    load(path)


def test_a_packed_archive_does_not_unfold(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in members("se_e2_a.pth").items():
            archive.writestr(each, bytes(1 << 28) if each.endswith("/data/0") else content)
    (tmp_path / "model.pth").write_bytes(buffer.getvalue())
    load(tmp_path / "model.pth")


def test_what_is_changed_is_found() -> None:
    """Every part of what is made wrong can be reached."""
    tree = exchange_file("hybrid")[1]["model"]
    assert ("descriptor", "list", 0, "embeddings", "networks", 0, "layers", 0, "@variables", "w") in set(places(tree))
    assert safetensors.torch.load(checkpoint()[0]).keys() == checkpoint()[2].keys()
