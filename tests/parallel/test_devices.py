"""Threads, devices and the summary: decisions from variables and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import UserError
from lockstep.parallel.context import WorkerContext
from lockstep.parallel.devices import Placement, Resources, device_type, place, spare_cores
from lockstep.parallel.summary import training_summary


def node(count: int, cores: int = 8, gpus: int = 0, host: str = "a") -> list[Resources]:
    return [Resources(host, frozenset(range(cores)), tuple(f"gpu{i}" for i in range(gpus))) for _ in range(count)]


def test_cores_are_shared_out_among_the_ranks_of_a_node() -> None:
    ranks = node(3) + node(1, host="b")
    assert [place(ranks, r, "cpu", {}).intra_threads for r in range(4)] == [2, 2, 2, 8]


def test_ranks_bound_to_their_own_cores_use_them_all() -> None:
    ranks = [Resources("a", frozenset({0, 1})), Resources("a", frozenset({2, 3}))]
    assert place(ranks, 1, "cpu", {}).intra_threads == 2


@given(st.integers(1, 64), st.integers(1, 200))
def test_shares_never_exceed_the_cores_and_are_never_empty(ranks: int, cores: int) -> None:
    shares = [place(node(ranks, cores), r, "cpu", {}).intra_threads for r in range(ranks)]
    assert min(shares) >= 1
    assert sum(shares) <= max(cores, ranks)


@pytest.mark.parametrize(
    ("environ", "intra", "inter"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3, 1),
        ({"OMP_NUM_THREADS": "3", "DP_INTRA_OP_PARALLELISM_THREADS": "5"}, 5, 1),
        ({"OMP_NUM_THREADS": "3", "TF_INTRA_OP_PARALLELISM_THREADS": "0"}, 3, 1),
        ({"TF_INTRA_OP_PARALLELISM_THREADS": "2", "TF_INTER_OP_PARALLELISM_THREADS": "4"}, 2, 4),
        ({"DP_INTER_OP_PARALLELISM_THREADS": "6", "TF_INTER_OP_PARALLELISM_THREADS": "4"}, 4, 6),
        ({"DP_INTRA_OP_PARALLELISM_THREADS": "0", "OMP_NUM_THREADS": "0"}, 4, 1),
        ({"OMP_NUM_THREADS": "2,1"}, 2, 1),
    ],
)
def test_thread_variables(environ: dict[str, str], intra: int, inter: int) -> None:
    placement = place(node(2), 0, "cpu", environ)
    assert (placement.intra_threads, placement.inter_threads) == (intra, inter)


@pytest.mark.parametrize(
    ("cores", "threads", "device", "spare"),
    [
        (2, 1, "cpu", 1),
        (1, 1, "cpu", 0),  # a thread beside the training's would only take its time
        (8, 8, "cpu", 0),
        (2, 4, "cpu", 0),
        (16, 4, "cpu", 12),
        (4, 4, "cuda", 4),
        (1, 1, "cuda", 1),
    ],
)
def test_cores_for_working_ahead(cores: int, threads: int, device: str, spare: int) -> None:
    assert spare_cores(cores, threads, device) == spare


def test_a_thread_variable_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="DP_INTRA_OP_PARALLELISM_THREADS = 'many'"):
        place(node(1), 0, "cpu", {"DP_INTRA_OP_PARALLELISM_THREADS": "many"})


@pytest.mark.parametrize(
    ("environ", "count", "expected"), [({}, 0, "cpu"), ({}, 2, "cuda"), ({"DEVICE": "cpu"}, 2, "cpu")]
)
def test_device_type(environ: dict[str, str], count: int, expected: str) -> None:
    assert device_type(environ, count) == expected


def test_each_rank_of_a_node_takes_the_next_visible_gpu() -> None:
    ranks = node(2, gpus=4) + node(2, gpus=4, host="b")
    assert [place(ranks, r, "cuda", {}).device for r in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


def test_a_rank_that_sees_only_its_own_gpu_takes_it() -> None:
    ranks = [Resources("a", frozenset({0}), (f"gpu{i}",)) for i in range(3)]
    assert [place(ranks, r, "cuda", {}).device for r in range(3)] == ["cuda:0"] * 3


def test_more_ranks_than_gpus_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match=r"(?s)3 ranks on a, but 2 visible GPUs.*start 2 ranks.*DEVICE=cpu"):
        place(node(3, gpus=2), 2, "cuda", {})


def test_summary_of_a_distributed_run_has_the_known_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "exp-13-57")
    context = WorkerContext("hydra", 0, 4, 0, 4, ("exp-13-57",))
    lines = training_summary(context, Placement("cuda:0", 2, 1, 4), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert lines == [
        "---Summary of the training---------------------------------------",
        "distributed",
        "world size:           4",
        "my rank:              0",
        "node list:            ['exp-13-57']",
        "running on:           exp-13-57",
        "computing device:     gpu:0",
        "CUDA_VISIBLE_DEVICES: 0,1,2,3",
        "Count of visible GPU: 4",
        "num_intra_threads:    2",
        "num_inter_threads:    1",
        "-----------------------------------------------------------------",
    ]


def test_summary_of_one_process_says_serial() -> None:
    lines = training_summary(WorkerContext("alone", 0, 1, 0, 1), Placement("cpu", 2, 1), {})
    assert lines[1] == "serial"
    assert "computing device:     cpu:0" in lines
    assert "CUDA_VISIBLE_DEVICES: unset" in lines
    assert not any("world size" in line for line in lines)
