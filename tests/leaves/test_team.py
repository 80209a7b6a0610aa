"""Shares of a loop on torch's own threads: all of them done, once, at once, and no error lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lockstep import team


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_torch_has_a_team_here() -> None:
    assert team._openmp() is not None


@pytest.mark.parametrize("rows", [0, 1, 5, 300, 1001])
def test_every_row_is_done_once(rows: int) -> None:
    done = np.zeros(rows, dtype=int)

    def run(own: slice) -> None:
        done[own] += 1

    team.rows_in_shares(run, rows, 100)
    assert (done == 1).all()


def test_shares_are_worked_on_at_once_by_as_many_threads() -> None:
    all_here = threading.Barrier(3, timeout=20)
    threads = set()

    def run(_: slice) -> None:
        threads.add(threading.get_ident())
        all_here.wait()

    team.rows_in_shares(run, 300, 100)
    assert len(threads) == 3
    assert threading.get_ident() in threads


def test_more_shares_than_threads_are_all_done() -> None:
    done: list[int] = []
    team.in_shares(done.append, range(50))
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("failure", [ValueError("this one"), KeyboardInterrupt()])
def test_an_error_in_a_share_is_raised_and_the_team_goes_on(failure: BaseException) -> None:
    def run(share: int) -> None:
        if share == 1:
            raise failure

    with pytest.raises(type(failure)):
        team.in_shares(run, range(3))
    done: list[int] = []
    team.in_shares(done.append, range(3))
    assert sorted(done) == [0, 1, 2]
    assert ((torch.ones(300, 300) @ torch.ones(300, 300)) == 300.0).all()


def test_little_work_and_other_threads_get_one_share() -> None:
    assert team.n_shares(600, 100) == 3
    assert team.n_shares(250, 100) == 2
    assert team.n_shares(199, 100) == 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(team.n_shares, 600, 100).result() == 1
    torch.set_num_threads(1)
    assert team.n_shares(600, 100) == 1


def test_without_its_library_a_loop_is_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_openmp", lambda: None)
    assert team.n_shares(600, 100) == 1
    done: list[int] = []
    team.in_shares(done.append, range(4))
    assert done == [0, 1, 2, 3]
