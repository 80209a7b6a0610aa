"""The loader: order, errors, threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from system_files import NAMES, simple_system

from lockstep.data import DataSet, DpLoaderSet, MicroBatch, Plan, depth_for, make_plan, worker_count
from lockstep.errors import DataError, UserError
from lockstep.tasks.energy.arrays import LABELS


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    for number, n_frames in enumerate((5, 3, 8)):
        simple_system(tmp_path / f"s{number}", n_frames, seed=number)
    return make_plan(DataSet(tmp_path, NAMES, LABELS), 2, auto_prob="prob_sys_size")


def loader(plan: Plan, **options: object) -> DpLoaderSet[float]:
    settings = {"start": 0, "rank": 0, "size": 1, "workers": 2, "prepare": lambda b: float(b.coord.sum())}
    return DpLoaderSet(plan.dataset, plan.stream(3), **{**settings, **options})  # type: ignore[arg-type]


def loader_threads() -> int:
    return sum(thread.name.startswith("loader") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_micro_batches_arrive_in_order_with_their_data(plan: Plan, workers: int) -> None:
    stream = plan.stream(3)
    with loader(plan, workers=workers, start=7) as items:
        for number, (batch, prepared) in zip(range(7, 47), items, strict=False):
            system, frames = stream[number]
            assert (batch.number, batch.system) == (number, system)
            np.testing.assert_array_equal(batch.coord, plan.dataset.read(system, frames).coord)
            assert prepared == batch.coord.sum()


def test_slow_preparation_does_not_change_the_order(plan: Plan) -> None:
    def prepare(batch: MicroBatch) -> float:
        time.sleep(0.01 * (batch.number % 3 == 0))
        return 0.0

    with loader(plan, workers=4, prepare=prepare) as items:
        assert [next(items)[0].number for _ in range(20)] == list(range(20))


def test_ranks_share_the_stream(plan: Plan) -> None:
    seen = []
    for rank in range(3):
        with loader(plan, start=10, rank=rank, size=3) as items:
            seen += [next(items)[0].number for _ in range(4)]
    assert sorted(seen) == list(range(10, 22))


def test_fewer_large_micro_batches_are_read_ahead() -> None:
    assert [depth_for(2, atoms) for atoms in (0, 192, 4096, 8192, 12288, 10**6)] == [4, 4, 4, 2, 1, 1]
    assert depth_for(0, 192) == 1


def test_a_plan_knows_its_largest_micro_batch(plan: Plan) -> None:
    with loader(plan) as items:
        assert plan.most_atoms == max(batch.coord.size // 3 for (batch, _), _ in zip(items, range(40), strict=False))


def test_no_more_than_depth_is_read_ahead(plan: Plan) -> None:
    prepared: list[int] = []
    with loader(plan, depth=3, prepare=lambda batch: float(prepared.append(batch.number) or 0)) as items:
        next(items)
        deadline = time.monotonic() + 60
        while len(prepared) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # for what must not come: a machine that is too slow for it hides a mistake, but invents none
        assert sorted(prepared) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_surfaces_as_it_is_when_its_micro_batch_is_due(plan: Plan, workers: int) -> None:
    file = Path(plan.dataset.name(0)) / "set.000" / "coord.npy"
    np.save(file, np.full_like(np.load(file), np.nan))
    first_bad = next(number for number in range(100) if plan.stream(3)[number].system == 0)
    items = loader(plan, workers=workers)
    for _ in range(first_bad):
        next(items)
    with pytest.raises(DataError, match=r"s0/set\.000/coord\.npy: the value is nan"):
        next(items)
    assert loader_threads() == 0
    with pytest.raises(StopIteration):
        next(items)


def test_close_leaves_no_thread_and_may_be_repeated(plan: Plan) -> None:
    items = loader(plan)
    next(items)
    assert loader_threads() > 0
    items.close()
    items.close()
    assert loader_threads() == 0


def test_waiting_is_measured(plan: Plan) -> None:
    def prepare(batch: MicroBatch) -> float:
        time.sleep(0.02)
        return 0.0

    with loader(plan, workers=1, prepare=prepare) as items:
        next(items)
        assert items.waited >= 0.02


@pytest.mark.parametrize(
    ("environ", "cores", "expected"),
    [
        ({}, 2, 2),
        ({}, 0, 0),
        ({}, 64, 8),
        ({"NUM_WORKERS": "0"}, 4, 0),
        ({"NUM_WORKERS": "12"}, 4, 12),
        ({"NUM_WORKERS": ""}, 3, 3),
    ],
)
def test_number_of_workers(environ: dict[str, str], cores: int, expected: int) -> None:
    assert worker_count(environ, cores) == expected


def test_a_wrong_number_of_workers_is_refused() -> None:
    with pytest.raises(UserError, match="NUM_WORKERS = 'many'"):
        worker_count({"NUM_WORKERS": "many"}, 4)
