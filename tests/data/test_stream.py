"""The stream: every frame once a pass, the same for any number of ranks, and from any starting point."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.data import Stream
from lockstep.data.scramble import Permutation
from lockstep.errors import CheckpointError


def make(frames: Sequence[int], sizes: Sequence[int], seed: int = 1, weights: Sequence[float] | None = None) -> Stream:
    share = np.ones(len(frames)) if weights is None else np.array(weights, dtype=float)
    return Stream(np.array(frames), np.array(sizes), share / share.sum(), seed)


sizes = st.integers(1, 30) | st.integers(60, 400)
systems = st.lists(sizes.flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(systems=systems, seed=st.integers(-(2**70), 2**70))
def test_every_frame_comes_once_a_pass_and_none_twice_in_a_micro_batch(
    systems: list[tuple[int, int]], seed: int
) -> None:
    stream = make([n for n, _ in systems], [b for _, b in systems], seed)
    taken: list[list[int]] = [[] for _ in systems]
    for _ in range(40 * len(systems)):
        system, frames = next(stream)
        assert len(frames) == systems[system][1] == len(set(frames.tolist()))
        taken[system] += frames.tolist()
    for (n, _), frames_of in zip(systems, taken, strict=True):
        whole = len(frames_of) // n
        for number in range(whole):
            assert sorted(frames_of[number * n : (number + 1) * n]) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(systems=systems, ranks=st.integers(1, 7), start=st.integers(0, 9000))
def test_ranks_together_see_what_one_sees(systems: list[tuple[int, int]], ranks: int, start: int) -> None:
    frames, sizes = [n for n, _ in systems], [b for _, b in systems]
    alone = make(frames, sizes)
    alone.seek(start)
    serial = [(s, f.tolist()) for s, f in (next(alone) for _ in range(5 * ranks))]
    dealt: dict[int, tuple[int, list[int]]] = {}
    for rank in range(ranks):
        stream = make(frames, sizes)
        for number in range(start + rank, start + 5 * ranks, ranks):
            system, chosen = stream[number]
            dealt[number - start] = (system, chosen.tolist())
    assert [dealt[number] for number in range(5 * ranks)] == serial


@settings(max_examples=20, deadline=None)
@given(systems=systems, numbers=st.lists(st.integers(0, 20_000), min_size=1, max_size=6))
def test_any_order_of_access_gives_the_same(systems: list[tuple[int, int]], numbers: list[int]) -> None:
    frames, sizes = [n for n, _ in systems], [b for _, b in systems]
    jumping = make(frames, sizes)
    for number in numbers:
        fresh = make(frames, sizes).at(number)
        found = jumping.at(number)
        assert found.system == fresh.system
        np.testing.assert_array_equal(found.frames, fresh.frames)


def test_seek_equals_going_there_step_by_step() -> None:
    walking, seeking = make([7, 5, 11], [3, 4, 11]), make([7, 5, 11], [3, 4, 11])
    walked = [next(walking) for _ in range(9000)]
    for number in (8999, 0, 4095, 4096, 5000):
        seeking.seek(number)
        assert seeking.position == number
        found = next(seeking)
        assert found.system == walked[number].system
        np.testing.assert_array_equal(found.frames, walked[number].frames)


def test_the_sequence_is_pinned() -> None:
    """A change of this sequence would change every training run and every restart: it needs a new version."""
    stream = make([5, 3], [2, 2], seed=42)
    found = [(s, f.tolist()) for s, f in (next(stream) for _ in range(6))]
    assert found == [(1, [0, 1]), (0, [4, 3]), (1, [2, 0]), (0, [0, 2]), (0, [1, 2]), (0, [3, 4])]


def test_seeds_and_passes_differ() -> None:
    orders = {tuple(make([20], [20], seed).at(turn).frames.tolist()) for seed in range(5) for turn in range(5)}
    assert len(orders) == 25
    twins = make([20, 20], [20, 20])
    assert twins.frames(0, 0).tolist() != twins.frames(1, 0).tolist()


def test_large_seeds_that_differ_little_differ() -> None:
    first, second = make([50], [50], 2**64 - 1), make([50], [50], 2**64 - 2)
    assert first.at(0).frames.tolist() != second.at(0).frames.tolist()


def test_systems_come_as_often_as_their_probability_says() -> None:
    stream = make([1, 1, 1, 1], [1, 1, 1, 1], weights=[5, 0, 3, 2])
    counts = np.bincount([stream.at(number).system for number in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.0, 0.3, 0.2], atol=0.015)
    assert counts[1] == 0


def test_all_first_places_are_equally_likely_even_where_frames_change_places() -> None:
    """The swaps at the end of a pass must not favour any frame: 5 frames by 3, all passes."""
    stream = make([5], [3])
    counts = np.zeros((5, 5))
    for number in range(4000):
        counts[np.arange(5), stream._pass(0, number)] += 1
    np.testing.assert_allclose(counts / 4000, 0.2, atol=0.035)


def test_a_restart_goes_on_where_the_stream_stopped() -> None:
    stream, again = make([7, 5], [3, 2]), make([7, 5], [3, 2])
    for _ in range(100):
        next(stream)
    assert again.load_state_dict(stream.state_dict()) == []
    assert next(again).frames.tolist() == next(stream).frames.tolist()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make([7, 5, 5], [3, 2, 2]), "there were 2 systems and now there are 3"),
        (make([7, 6], [3, 2]), "there were 12 frames and now there are 13"),
        (make([6, 6], [3, 2]), "frames per system, batch sizes or probabilities have changed"),
        (make([7, 5], [3, 3]), "frames per system, batch sizes or probabilities have changed"),
        (make([7, 5], [3, 2], weights=[1, 2]), "probabilities have changed"),
        (make([7, 5], [3, 2], seed=2), "the seed was 1 and now is 2"),
    ],
)
def test_other_data_are_refused_or_reported(other: Stream, message: str) -> None:
    stream = make([7, 5], [3, 2])
    stream.seek(100)
    with pytest.raises(CheckpointError, match=message):
        other.load_state_dict(stream.state_dict())
    assert message in " ".join(other.load_state_dict(stream.state_dict(), strict=False))
    assert other.position == 100


def test_another_version_is_refused() -> None:
    stream = make([7], [3])
    with pytest.raises(CheckpointError, match="saved in format 99"):
        stream.load_state_dict({**stream.state_dict(), "version": 99})


def test_seeking_a_million_draws_is_quick_and_memory_stays_small() -> None:
    n = 50_000
    stream = make([2] * n, [1] * n)
    began = time.process_time()
    stream.seek(1_000_000)
    assert time.process_time() - began < 3  # typically 0.3; a loop over the draws would take far longer
    for _ in range(500):
        next(stream)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 3000), key=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=3))
def test_a_computed_permutation_has_every_number_once(n: int, key: list[int]) -> None:
    order = Permutation(n, key)
    everything = order(np.arange(n))
    assert sorted(everything.tolist()) == list(range(n))
    places = np.array([n - 1, 0, n // 2])
    assert order(places).tolist() == everything[places].tolist()


def test_every_number_is_equally_likely_at_every_place() -> None:
    """And so is every pair at two places side by side, which the halves of a Feistel network may tie together."""
    n, passes = 30, 6000
    orders = np.stack([Permutation(n, (3, number))(np.arange(n)) for number in range(passes)])
    expected = passes / n
    for place in (0, 1, n // 2, n - 1):
        counts = np.bincount(orders[:, place], minlength=n)
        assert ((counts - expected) ** 2 / expected).sum() < n - 1 + 6 * np.sqrt(2 * (n - 1))
    pairs = np.bincount(orders[:, 8] * n + orders[:, 9], minlength=n * n)
    apart, expected = ~np.eye(n, dtype=bool).ravel(), passes / (n * (n - 1))
    freedom = n * (n - 1) - 1
    assert ((pairs[apart] - expected) ** 2 / expected).sum() < freedom + 6 * np.sqrt(2 * freedom)


def test_a_draw_costs_no_more_in_many_large_systems_than_in_one() -> None:
    """Nothing of the size of a system is ever made: 100 systems of a thousand million frames."""
    n = 1_000_000_000
    stream = make([n] * 100, [3] * 100)
    tracemalloc.start()
    began = time.process_time()
    drawn = [next(stream).frames for _ in range(2000)]
    assert time.process_time() - began < 20  # typically 0.3
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert len(np.unique(np.concatenate(drawn))) > 5990


def test_passes_of_many_middling_systems_are_remembered_within_limits() -> None:
    n = 3000
    stream = make([n] * 2000, [n - 1] * 2000)
    for number in range(1500):
        stream.at(number)
    assert stream._remembered == sum(len(order) for _, order in stream._passes.values()) <= 1 << 20


def test_an_order_of_before_is_gone_on_from_in_words() -> None:
    small, large = make([60], [3]), make([90], [3])
    small.seek(7)
    assert make([60], [3]).load_state_dict({**small.state_dict(), "version": 1}) == []
    state = {**large.state_dict(), "version": 1, "position": 7}
    with pytest.raises(CheckpointError, match="shuffled frames in another order"):
        make([90], [3]).load_state_dict(state)
    again = make([90], [3])
    assert "another order" in again.load_state_dict(state, strict=False)[0]
    assert again.position == 7


def test_the_computed_sequence_is_pinned() -> None:
    stream = make([100], [3], seed=42)
    found = [stream[number].frames.tolist() for number in (0, 1, 33, 34)]
    assert found == [[87, 67, 28], [5, 14, 23], [22, 39, 89], [13, 51, 76]]
