"""Checkpoints: whole or absent, found, verified, and never a way to run code."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.checkpoint.compare import compare_configs
from lockstep.checkpoint.find import find_checkpoint, load_checkpoint
from lockstep.checkpoint.store import CheckpointStore, NullStore
from lockstep.errors import CheckpointError

# Processes that are killed come from a server which has torch loaded once for all of them.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["lockstep.checkpoint.store"])

INFO = {"position": 17, "config": {"model": {"type_map": ["O", "H"]}}, "rate": 0.1 + 0.2}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder, as a training does."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_tensors(step=0):
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.randn(7, 5, generator=generator, dtype=torch.float64),
        "model.bias": torch.randn(5, generator=generator),
        "optimizer.weight.step": torch.tensor(float(step)),
        "generator.cpu": torch.Generator().manual_seed(step).get_state(),
        "empty": torch.zeros(0, 3),
    }


def save(*steps, max_keep=100, prefix="model.ckpt", **options):
    store = CheckpointStore(prefix, max_keep, **options)
    for step in steps:
        store.save(step, make_tensors(step), INFO)
    return store


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def damage(path, position=-3):
    data = bytearray(Path(path).read_bytes())
    data[position] ^= 1
    Path(path).write_bytes(data)


# --- writing ---------------------------------------------------------------------------------------------------


def test_what_is_saved_comes_back_bit_for_bit():
    save(1000)

    found = load_checkpoint("model.ckpt")

    expected = make_tensors(1000)
    assert found.step == 1000
    assert found.info == INFO
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(found.tensors[name], expected[name]) for name in expected)
    assert all(found.tensors[name].dtype == expected[name].dtype for name in expected)
    assert found.group("model").keys() == {"weight", "bias"}
    assert found.warnings == ()


def test_the_loaded_tensors_can_be_written_to():
    save(1)
    found = load_checkpoint("model.ckpt")
    found.tensors["model.bias"].add_(1)

    assert torch.equal(found.tensors["model.bias"], make_tensors(1)["model.bias"] + 1)


def test_a_random_generator_goes_on_where_it_was():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    CheckpointStore("model.ckpt", 5).save(1, {"generator": generator.get_state()}, {})
    expected = torch.rand(4, generator=generator)

    generator.set_state(load_checkpoint("model.ckpt").tensors["generator"])

    assert torch.equal(torch.rand(4, generator=generator), expected)


def test_views_of_one_buffer_and_transposed_tensors_are_saved():
    flat = torch.arange(12.0)
    tensors = {"model.a": flat[:6].view(2, 3), "model.b": flat[6:].view(2, 3).T, "model.c": flat}
    CheckpointStore("model.ckpt", 5).save(1, tensors, {})

    found = load_checkpoint("model.ckpt").tensors

    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_saving_leaves_the_file_a_link_and_a_pointer():
    save(1000, 2000)

    assert names() == [
        "checkpoint",
        "model.ckpt-1000.safetensors",
        "model.ckpt-2000.safetensors",
        "model.ckpt.safetensors",
    ]
    assert Path("checkpoint").read_text() == "model.ckpt-2000.safetensors"
    assert os.readlink("model.ckpt.safetensors") == "model.ckpt-2000.safetensors"


def test_other_programs_can_read_the_weights():
    save(7)

    assert torch.equal(
        safetensors.torch.load_file("model.ckpt-7.safetensors")["model.weight"], make_tensors(7)["model.weight"]
    )


def test_file_systems_without_links_do_without_the_link(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.symlink", refuse)
    save(1000)

    assert names() == ["checkpoint", "model.ckpt-1000.safetensors"]
    assert load_checkpoint("model.ckpt").step == 1000


def test_a_real_file_in_the_place_of_the_link_is_left_alone():
    Path("model.ckpt.safetensors").write_text("mine")
    save(1000)

    assert Path("model.ckpt.safetensors").read_text() == "mine"


@pytest.mark.parametrize(
    "options", [{"prefix": "out/model.ckpt"}, {"save_dir": "out"}, {"prefix": "checkpoint/model.ckpt"}]
)
def test_checkpoints_in_other_folders_are_found_by_their_prefix(options):
    store = save(10, 20, **options)

    assert store.path_for(20).is_file()
    assert load_checkpoint(store.prefix).step == 20
    assert load_checkpoint(store.path_for(10)).step == 10


def test_only_the_latest_are_kept():
    save(*range(1, 13), max_keep=3)

    assert [path.name for path in find_checkpoint("model.ckpt")] == [
        f"model.ckpt-{step}.safetensors" for step in (12, 11, 10)
    ]


def test_rotation_spares_all_that_is_not_of_this_run():
    spared = [
        "model.ckpt-best.safetensors", "model.ckpt-1.pt", "other.ckpt-1.safetensors", "my-model.ckpt-1.safetensors",
        "model.ckpt-1.safetensors.bak", "model_ckpt-1.safetensors", "model.ckpt-99.safetensors",
    ]  # fmt: skip
    for name in spared:
        Path(name).write_text("precious")
    save(2, 3, 4, 5, max_keep=2)

    assert all(Path(name).read_text() == "precious" for name in spared)
    assert not Path("model.ckpt-3.safetensors").exists()


def test_nothing_is_rotated_away_before_the_new_one_is_whole(monkeypatch):
    save(1, 2, max_keep=2)
    before = {name: Path(name).read_bytes() for name in names()}
    fail_sync(monkeypatch)

    with pytest.raises(CheckpointError):
        save(3, max_keep=2)

    assert {name: Path(name).read_bytes() for name in names()} == before


def fail_sync(monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)


def test_a_full_disk_is_explained(monkeypatch, folder):
    fail_sync(monkeypatch)

    with pytest.raises(CheckpointError) as caught:
        save(3)

    message = str(caught.value)
    assert message.startswith("model.ckpt-3.safetensors: ")
    assert "No space left on device" in message
    assert f"free space in {folder}" in message
    assert "remedy: make room" in message


def write_beyond_the_limit(connection):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = CheckpointStore("model.ckpt", 1)
    store.save(1, {"a": torch.zeros(10)}, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        store.save(2, {"a": torch.zeros(100000)}, {})
    except CheckpointError as error:
        connection.send(str(error))


def test_a_file_size_limit_leaves_the_former_checkpoint():
    receiver, sender = PROCESSES.Pipe(duplex=False)
    writer = PROCESSES.Process(target=write_beyond_the_limit, args=(sender,))
    writer.start()
    sender.close()
    message = receiver.recv()
    writer.join()

    assert message.startswith("model.ckpt-2.safetensors: ")
    assert "File too large" in message
    assert names() == ["checkpoint", "model.ckpt-1.safetensors", "model.ckpt.safetensors"]
    assert load_checkpoint("model.ckpt").step == 1


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("mounting a small disk needs privileges")
    yield disk
    os.chdir("/")
    subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk_leaves_the_former_checkpoints(small_disk, monkeypatch):
    monkeypatch.chdir(small_disk)
    store = CheckpointStore("model.ckpt", 2)
    store.save(1, {"a": torch.zeros(1000)}, {})
    store.save(2, {"a": torch.zeros(1000)}, {})
    before = names()

    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(3, {"a": torch.zeros(20000)}, {})

    assert names() == before
    assert load_checkpoint("model.ckpt").step == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_explained(folder):
    folder.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            save(1)
    finally:
        folder.chmod(0o700)


def write_forever(connection, step):
    store = CheckpointStore("model.ckpt", 2)
    while True:
        step += 1
        store.save(step, {"a": torch.full((50000,), float(step))}, {"square": step * step})
        connection.send(step)


def run_and_kill(step, seconds):
    """The last step that a writer reported before it was killed."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    writer = PROCESSES.Process(target=write_forever, args=(sender, step))
    writer.start()
    sender.close()
    step = receiver.recv()
    time.sleep(seconds)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    with contextlib.suppress(EOFError):
        while True:
            step = receiver.recv()
    return step


def test_a_writer_killed_at_any_moment_leaves_the_newest_or_the_one_before():
    dice = random.Random(1)
    step = 0
    for _ in range(12):
        reported = run_and_kill(step, 0.05 * dice.random())
        found = load_checkpoint("model.ckpt")
        step = found.step

        assert found.step in (reported, reported + 1)
        assert found.warnings == ()
        assert found.info["square"] == step**2
        assert found.tensors["a"].unique().tolist() == [step]
    save(step + 1)
    assert not [name for name in names() if name.endswith(".tmp")]


def test_the_null_store_writes_nothing():
    NullStore().save(1, make_tensors(), INFO)

    assert names() == []


# --- finding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("model.ckpt", 20),
        ("model.ckpt.safetensors", 20),
        (".", 20),
        ("model.ckpt-10", 10),
        ("model.ckpt-10.safetensors", 10),
        ("./model.ckpt-20", 20),
    ],
)
def test_a_checkpoint_is_found_by_all_its_names(where, step):
    save(10, 20)

    assert load_checkpoint(where).step == step


@pytest.mark.parametrize("where", ["run/model.ckpt", "run", "run/model.ckpt-20"])
def test_a_run_is_found_from_outside_its_folder(where, monkeypatch, folder):
    (folder / "run").mkdir()
    monkeypatch.chdir(folder / "run")
    save(10, 20)
    monkeypatch.chdir(folder)

    assert load_checkpoint(where).step == 20


def test_the_pointer_says_which_is_the_newest():
    save(10, 500)
    save(20)  # a new training in the folder of an old, longer one

    assert load_checkpoint("model.ckpt").step == 20


def test_without_pointer_and_link_the_last_step_is_the_newest():
    save(10, 9, 100, 20)
    Path("checkpoint").unlink()
    Path("model.ckpt.safetensors").unlink()

    assert load_checkpoint("model.ckpt").step == load_checkpoint(".").step == 100


def test_the_pointer_of_another_run_does_not_mislead():
    save(10, prefix="first.ckpt")
    save(99, prefix="second.ckpt")

    assert load_checkpoint("first.ckpt").step == 10
    assert load_checkpoint("second.ckpt").step == 99


@pytest.mark.parametrize("pointer", [True, False])
def test_a_folder_with_several_runs_asks_which(pointer):
    save(10, prefix="first.ckpt")
    save(99, prefix="second.ckpt")
    assert Path("checkpoint").read_text() == "first.ckpt-10.safetensors", "the pointer of the first is left alone"
    if not pointer:
        Path("checkpoint").unlink()

    with pytest.raises(CheckpointError, match=r"several runs: first\.ckpt, second\.ckpt"):
        find_checkpoint(".")


@pytest.mark.parametrize("where", ["model.ckpt", "model.ckpt-30", "missing/model.ckpt"])
def test_a_missing_checkpoint_is_explained(where):
    save(10, prefix="other.ckpt")

    with pytest.raises(CheckpointError, match="no such checkpoint") as caught:
        find_checkpoint(where)

    assert str(caught.value).startswith(where)


def test_an_empty_folder_is_explained(folder):
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(folder)


# --- damage ----------------------------------------------------------------------------------------------------


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(path):
    path.write_bytes(path.read_bytes()[:40])


def empty(path):
    path.write_bytes(b"")


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def bad_json(path):
    data = bytearray(path.read_bytes())
    data[8] = ord("[")
    path.write_bytes(data)


def huge_header(path):
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])


def other_step(path):
    path.write_bytes(path.read_bytes().replace(b'\\"step\\": 20', b'\\"step\\": 21'))


def vanish(path):
    path.unlink()


@pytest.mark.parametrize("harm", [damage, truncate, cut_header, empty, zero, bad_json, huge_header, other_step, vanish])
def test_a_damaged_newest_is_named_and_the_one_before_is_taken(harm, caplog):
    save(10, 20)
    harm(Path("model.ckpt-20.safetensors"))

    found = load_checkpoint("model.ckpt")

    assert found.step == 10
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("model.ckpt-20.safetensors is damaged")
    assert "model.ckpt-20.safetensors is damaged" in caplog.text


def test_all_damaged_are_listed():
    save(10, 20)
    damage("model.ckpt-10.safetensors")
    empty(Path("model.ckpt-20.safetensors"))

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint("model.ckpt")

    assert "model.ckpt-20.safetensors: the file is empty" in str(caught.value)
    assert "model.ckpt-10.safetensors: the checksum does not match" in str(caught.value)


def test_a_damaged_file_asked_for_by_name_is_not_replaced_by_another():
    save(10, 20)
    damage("model.ckpt-20.safetensors")

    with pytest.raises(CheckpointError, match=r"damaged(.|\n)*model\.ckpt-10\.safetensors"):
        load_checkpoint("model.ckpt-20")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_noticed(data):
    path = Path("model.ckpt-1.safetensors")
    save(1)
    contents = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(contents) - 1))
    contents[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(contents)

    with pytest.raises(CheckpointError):
        load_checkpoint(path)


# --- foreign files ---------------------------------------------------------------------------------------------


class Malicious:
    def __reduce__(self):
        return (os.mkdir, ("code-ran",))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["model.ckpt-10.safetensors", "model.ckpt.pt", "evil"])
def test_a_malicious_pickle_is_refused_without_running_its_code(name, protocol):
    Path(name).write_bytes(pickle.dumps(Malicious(), protocol=protocol))

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(name)

    assert not Path("code-ran").exists()
    if protocol >= 2 or name.endswith(".pt"):
        assert "is a Python pickle; loading could run code" in str(caught.value)


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("where", ["model.ckpt-10.pt", "model.ckpt-10"])
def test_a_checkpoint_of_deepmd_kit_is_refused_with_the_way_out(where, new_format):
    torch.save({"model": {"weight": torch.zeros(3)}}, "model.ckpt-10.pt", _use_new_zipfile_serialization=new_format)

    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(where)

    assert "is a Python pickle; loading could run code" in str(caught.value)
    assert "dp convert-backend model.ckpt-10.pt model.dp" in str(caught.value)
    assert "--init-frz-model model.dp" in str(caught.value)


def test_a_safetensors_file_of_something_else_is_refused():
    safetensors.torch.save_file({"a": torch.zeros(3)}, "model.safetensors", {"format": "pt"})

    with pytest.raises(CheckpointError, match="not a checkpoint of this program"):
        load_checkpoint("model.safetensors")


def test_a_checkpoint_of_a_later_version_is_not_mistaken_for_damage():
    save(10, 20)
    path = Path("model.ckpt-20.safetensors")
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"9"'))

    with pytest.raises(CheckpointError, match="format version 9"):
        load_checkpoint("model.ckpt")


# --- another model ---------------------------------------------------------------------------------------------


def test_differences_are_reported_with_their_path():
    saved = {"model": {"type_map": ["O", "H"], "descriptor": {"neuron": [25, 50, 100], "rcut": 6.0}}}
    given = {"model": {"type_map": ["O", "H"], "descriptor": {"neuron": [25, 50], "rcut": 6.0}}}

    assert compare_configs(saved, given) == [
        "model.descriptor.neuron: checkpoint has [25, 50, 100], input has [25, 50]"
    ]


def test_keys_on_one_side_only_are_reported():
    assert compare_configs({"a": 1}, {"b": None}, where="model") == [
        "model.a: checkpoint has 1, input has nothing",
        "model.b: checkpoint has nothing, input has null",
    ]


def test_seeds_and_the_kind_of_sequence_make_no_difference():
    saved = json.loads(json.dumps({"neuron": (1, 2), "seed": 1, "net": {"seed": 3, "pairs": ((0, 1),)}}))

    assert compare_configs(saved, {"neuron": (1, 2), "seed": 2, "net": {"seed": None, "pairs": ((0, 1),)}}) == []
