"""Batch sizes and probabilities: arithmetic and messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.batching import batch_counts, batch_sizes, kept_systems
from lockstep.data.probability import micro_batches_per_epoch, steps_for_epochs, system_probabilities
from lockstep.errors import InputError

MANY = np.array([10**9])


def size_of(rule: int | str | list[int], natoms: int) -> int:
    return int(batch_sizes(rule, np.array([natoms]), MANY)[0])


@given(natoms=st.integers(1, 500), atoms=st.integers(1, 2000))
def test_auto_is_the_smallest_and_max_the_largest_that_fits(natoms: int, atoms: int) -> None:
    auto = size_of(f"auto:{atoms}", natoms)
    assert auto * natoms >= atoms > (auto - 1) * natoms
    most = size_of(f"max:{atoms}", natoms)
    assert most == 1 or most * natoms <= atoms
    assert (most + 1) * natoms > atoms


@pytest.mark.parametrize(
    ("rule", "natoms", "expected"),
    [("auto", 192, 1), ("auto", 12, 3), ("auto", 32, 1), ("auto", 31, 2), ("auto:256", 192, 2), ("auto:64", 3, 22),
     ("max:256", 192, 1), ("max:100", 192, 1), ("max:400", 192, 2), ("filter:400", 192, 2), (5, 192, 5), ([7], 3, 7)],
)  # fmt: skip
def test_known_batch_sizes(rule: int | str | list[int], natoms: int, expected: int) -> None:
    assert size_of(rule, natoms) == expected


def test_a_batch_never_exceeds_the_frames_of_its_system() -> None:
    assert batch_sizes(8, np.array([3, 3]), np.array([5, 80])).tolist() == [5, 8]


def test_filter_drops_large_systems_and_only_filter_does() -> None:
    natoms = np.array([10, 300, 20])
    assert kept_systems("filter:100", natoms).tolist() == [0, 2]
    assert kept_systems("max:100", natoms).tolist() == [0, 1, 2]
    with pytest.raises(InputError, match=r"no system is left: the smallest has 10 atoms"):
        kept_systems("filter:5", natoms)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("auto:abc", "expected an integer"),
        ("auto:0", "expected an integer"),
        ("auto:-3", "expected an integer"),
        ("max", "expected an integer"),
        ("filter:", "expected an integer"),
        ("huge", "expected an integer"),
        ("mixed:0", "expected an integer"),
        (0, "at least 1"),
        ([2, 0], "at least 1"),
        ([2, 1.5], "at least 1"),
        ([2], "1 entries for 2 systems"),
    ],
)
def test_wrong_batch_sizes_are_refused_in_words(rule: int | str | list[int], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        batch_sizes(rule, np.array([3, 4]), np.array([5, 5]))
    assert caught.value.where == "training.training_data.batch_size"
    assert caught.value.remedy


def test_counts_include_the_batch_that_is_not_full() -> None:
    assert batch_counts(np.array([80, 81, 3]), np.array([8, 8, 3])).tolist() == [10, 11, 1]


COUNTS = np.array([10, 30, 60])


@pytest.mark.parametrize(
    ("sys_probs", "auto_prob", "expected"),
    [
        (None, "prob_uniform", [1 / 3, 1 / 3, 1 / 3]),
        (None, "prob_sys_size", [0.1, 0.3, 0.6]),
        (None, "prob_sys_size;0:2:0.5;2:3:0.5", [0.125, 0.375, 0.5]),
        (None, "prob_sys_size;0:1:1;1:3:3", [0.25, 0.25, 0.5]),
        (None, "prob_sys_size;1:3:1", [0.0, 1 / 3, 2 / 3]),
        ([0.2, 0.3, 0.5], "prob_uniform", [0.2, 0.3, 0.5]),
        ([0.1, -1, -1], "prob_uniform", [0.1, 0.3, 0.6]),
        ([-1, -1, -1], "prob_uniform", [0.1, 0.3, 0.6]),
        ([1.0, 0.0, 0.0], "prob_uniform", [1, 0, 0]),
    ],
)
def test_known_probabilities(sys_probs: list[float] | None, auto_prob: str, expected: list[float]) -> None:
    np.testing.assert_allclose(system_probabilities(COUNTS, sys_probs, auto_prob), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("sys_probs", "auto_prob", "where", "message"),
    [
        (None, "prob_size", "auto_prob", 'expected "prob_uniform"'),
        (None, "prob_sys_size;0:2", "auto_prob", "'0:2' is not start:end:weight"),
        (None, "prob_sys_size;a:2:1", "auto_prob", "not start:end:weight"),
        (None, "prob_sys_size;0:9:1", "auto_prob", "numbered 0 to 2"),
        (None, "prob_sys_size;2:2:1", "auto_prob", "does not name systems"),
        (None, "prob_sys_size;-1:2:1", "auto_prob", "does not name systems"),
        (None, "prob_sys_size;0:2:-1", "auto_prob", "at least 0"),
        (None, "prob_sys_size;0:2:nan", "auto_prob", "at least 0"),
        (None, "prob_sys_size;0:2:1;1:3:1", "auto_prob", "overlaps"),
        (None, "prob_sys_size;0:3:0", "auto_prob", "no block has a weight"),
        ([0.5, 0.5], "prob_uniform", "sys_probs", "2 entries for 3 systems"),
        ([0.5, 0.5, 0.5], "prob_uniform", "sys_probs", "add up to 1.5, more than 1"),
        ([0.1, 0.1, 0.1], "prob_uniform", "sys_probs", "add up to 0.3, less than 1"),
        ([float("nan"), 0.5, 0.5], "prob_uniform", "sys_probs", "not a number"),
    ],
)
def test_wrong_probabilities_are_refused_in_words(
    sys_probs: list[float] | None, auto_prob: str, where: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        system_probabilities(COUNTS, sys_probs, auto_prob)
    assert caught.value.where == f"training.training_data.{where}"


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_probabilities_add_up_to_one_and_an_epoch_by_size_is_all_batches(counts: list[int]) -> None:
    array = np.array(counts)
    probabilities = system_probabilities(array, None, "prob_sys_size")
    assert probabilities.sum() == pytest.approx(1)
    assert micro_batches_per_epoch(array, probabilities) == array.sum()


def test_an_epoch_lasts_until_the_rarest_system_is_expected_to_be_through() -> None:
    assert micro_batches_per_epoch(COUNTS, np.array([0.5, 0.25, 0.25])) == 240
    assert micro_batches_per_epoch(COUNTS, np.array([0.5, 0.5, 0.0])) == 60
    assert steps_for_epochs(1.5, 240, ranks=1) == 360
    assert steps_for_epochs(1.0, 241, ranks=4) == 61
    assert steps_for_epochs(1.1, 10, ranks=1) == 11  # 1.1 * 10 is a little more than 11
