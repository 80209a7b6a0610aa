"""Learning rates against the numbers that DeePMD-kit 3.2.0 gives for the same options."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config.learning_rate import CosineLearningRate, ExpLearningRate, WsdLearningRate
from lockstep.errors import InputError
from lockstep.optim.schedule import make_schedule

CLASSES = {"exp": ExpLearningRate, "cosine": CosineLearningRate, "wsd": WsdLearningRate}

# (options, numb_steps, {step: learning rate})
DEEPMD_KIT = [
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 3.51e-08, "decay_steps": 5000},
        1000000,
        {
            0: 0.001,
            1: 0.001,
            4999: 0.001,
            5000: 0.0009500064099092084,
            123456: 0.0002920363111186241,
            999999: 3.6947119128759015e-08,
            1000000: 3.5100000000000195e-08,
            1100000: 3.51e-08,
        },
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-05, "decay_steps": 5000},
        2000,
        {
            0: 0.001,
            99: 0.001,
            100: 0.0007943282347242815,
            1500: 3.162277660168378e-05,
            1999: 1.2589254117941668e-05,
            2000: 1e-05,
        },
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-05, "decay_steps": 50},
        40,
        {
            0: 0.001,
            1: 0.0008912509381337456,
            7: 0.00044668359215096327,
            39: 1.1220184543019652e-05,
            40: 1.0000000000000014e-05,
        },
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr_ratio": 0.001, "decay_steps": 100, "smooth": True},
        1000,
        {
            0: 0.001,
            1: 0.0009931160484209338,
            50: 0.0007079457843841379,
            333: 0.00010023052380778994,
            999: 1.0069316688518032e-06,
            1000: 1e-06,
        },
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-06, "decay_steps": 100, "decay_rate": 0.5},
        1000,
        {0: 0.001, 100: 0.0005, 250: 0.00025, 999: 1.953125e-06},
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-06, "decay_steps": 5000, "decay_rate": 0.5},
        1000,
        {0: 0.001, 999: 0.001, 5000: 0.0005},
    ),
    (
        {"type": "exp", "start_lr": 0.001, "stop_lr": 0.0, "decay_steps": 10},
        100,
        {
            0: 0.001,
            10: 0.00019952623149688798,
            50: 3.162277660168381e-07,
            99: 5.011872336272726e-10,
            100: 1.0000000000000007e-10,
        },
    ),
    (
        {"type": "exp", "start_lr": 0.002, "stop_lr": 1e-06, "decay_steps": 100, "warmup_steps": 200},
        1000,
        {
            0: 0.0,
            1: 1e-05,
            100: 0.001,
            199: 0.00199,
            200: 0.002,
            299: 0.002,
            300: 0.0007733947972985649,
            999: 2.5860013630631017e-06,
        },
    ),
    (
        {
            "type": "exp",
            "start_lr": 0.002,
            "stop_lr": 1e-06,
            "decay_steps": 100,
            "warmup_ratio": 0.05,
            "warmup_start_factor": 0.1,
        },
        1000,
        {
            0: 0.0002,
            25: 0.0011,
            49: 0.001964,
            50: 0.002,
            51: 0.002,
            150: 0.0008985725636131027,
            999: 1.4918955578206107e-06,
        },
    ),
    ({"type": "exp", "start_lr": 0.001, "stop_lr": 1e-05, "decay_steps": 5000}, 0, {0: 0.001}),
    (
        {"type": "cosine", "start_lr": 0.001, "stop_lr": 1e-05},
        1000,
        {
            0: 0.001,
            1: 0.0009999975572749199,
            250: 0.000855017856687341,
            500: 0.000505,
            999: 1.0002442725080185e-05,
            1000: 1e-05,
            1500: 1e-05,
        },
    ),
    (
        {"type": "cosine", "start_lr": 0.001, "stop_lr_ratio": 0.01, "warmup_steps": 100, "warmup_start_factor": 0.2},
        1000,
        {0: 0.0002, 50: 0.0006000000000000001, 99: 0.000992, 100: 0.001, 550: 0.000505, 999: 1.0003015709393756e-05},
    ),
    ({"type": "cosine", "start_lr": 0.001, "stop_lr": 1e-05}, 0, {0: 0.001}),
    (
        {"type": "wsd", "start_lr": 0.001, "stop_lr": 1e-05, "decay_phase_ratio": 0.1, "decay_type": "inverse_linear"},
        1000,
        {
            0: 0.001,
            899: 0.001,
            900: 0.001,
            901: 0.0005025125628140704,
            950: 1.9801980198019806e-05,
            999: 1.0099989900010101e-05,
            1000: 1e-05,
            2000: 1e-05,
        },
    ),
    (
        {
            "type": "wsd",
            "start_lr": 0.001,
            "stop_lr": 1e-05,
            "decay_phase_ratio": 0.25,
            "decay_type": "cosine",
            "warmup_ratio": 0.1,
        },
        1000,
        {
            0: 0.0,
            50: 0.0005,
            100: 0.001,
            749: 0.001,
            750: 0.001,
            800: 0.000905463412215599,
            875: 0.000505,
            999: 1.0039083119111025e-05,
        },
    ),
    (
        {
            "type": "wsd",
            "start_lr": 0.001,
            "stop_lr_ratio": 0.05,
            "decay_phase_ratio": 1.0,
            "decay_type": "linear",
            "warmup_steps": 100,
        },
        1000,
        {0: 0.0, 100: 0.001, 101: 0.0009989444444444444, 550: 0.0005250000000000001, 999: 5.105555555555549e-05},
    ),
]


def configure(options):
    return CLASSES[options["type"]](**options)


@pytest.mark.parametrize(("options", "numb_steps", "expected"), DEEPMD_KIT)
def test_learning_rates_are_those_of_deepmd_kit(options, numb_steps, expected):
    schedule = make_schedule(configure(options), numb_steps)

    assert {step: schedule.lr(step) for step in expected} == pytest.approx(expected, rel=1e-13, abs=0)


@pytest.mark.parametrize(("options", "numb_steps", "expected"), DEEPMD_KIT)
def test_the_factor_of_the_workers_multiplies_every_step(options, numb_steps, expected):
    alone = make_schedule(configure(options), numb_steps)
    four = make_schedule(configure(options), numb_steps, factor=4.0)

    assert [four.lr(step) for step in expected] == [4 * alone.lr(step) for step in expected]
    assert four.start_lr == 4 * options["start_lr"]


@pytest.mark.parametrize("warmup", [{"warmup_steps": 100}, {"warmup_steps": 150}])
def test_a_warm_up_as_long_as_the_training_is_refused(warmup):
    config = ExpLearningRate(start_lr=1e-3, stop_lr=1e-5, **warmup)

    with pytest.raises(InputError, match=r"learning_rate\.warmup_steps = 1.0: .* 100 steps"):
        make_schedule(config, 100)


@given(
    kind=st.sampled_from(["exp", "cosine", "wsd"]),
    numb_steps=st.integers(1, 5000),
    warmup_ratio=st.floats(0, 0.9),
    start=st.floats(1e-6, 1e-1),
    ratio=st.floats(1e-6, 1.0),
)
def test_rates_stay_between_the_ends_and_never_rise_after_the_warm_up(kind, numb_steps, warmup_ratio, start, ratio):
    config = CLASSES[kind](start_lr=start, stop_lr_ratio=ratio, warmup_ratio=warmup_ratio)
    schedule = make_schedule(config, numb_steps)
    first = schedule.warmup_steps
    rates = [schedule.lr(step) for step in range(first, numb_steps + 3, max(1, numb_steps // 50))]

    assert rates[0] == pytest.approx(start)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(rates))
    assert all(start * ratio * (1 - 1e-12) <= rate <= start * (1 + 1e-12) for rate in rates)


@pytest.mark.parametrize("kind", ["exp", "cosine", "wsd"])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.2])
def test_a_delayed_decay_has_the_same_ends_and_is_behind_in_between(kind, warmup_ratio):
    config = CLASSES[kind](start_lr=1e-3, stop_lr=1e-5, warmup_ratio=warmup_ratio)
    plain, delayed = make_schedule(config, 100), make_schedule(config, 100, delay=2.0)
    first = plain.warmup_steps

    assert [delayed.lr(step) for step in range(first + 1)] == [plain.lr(step) for step in range(first + 1)]
    assert all(delayed.lr(step) >= plain.lr(step) for step in range(first, 100))
    half, quarter = first + (100 - first) // 2, first + (100 - first) // 4
    assert delayed.lr(half) == pytest.approx(plain.lr(quarter))
    assert [delayed.lr(step) for step in (100, 120)] == [plain.lr(step) for step in (100, 120)]
