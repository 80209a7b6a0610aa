"""What workers and accumulated micro-batches mean for the rate and the optimizer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lockstep.config import Input, parse_input
from lockstep.config.optimizer import SoapConfig
from lockstep.training.pace import decay_delay, optimizer_for, rate_factor, warn_about_rate
from runs import tiny_input

SOAP = {"type": "SOAP"}


def given(rule: str = "auto", **changes: Any) -> Input:
    return parse_input(tiny_input(learning_rate__scale_by_worker=rule, **changes))


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0), ("auto", 12.0)])
def test_the_rate_of_adam(rule: str, factor: float) -> None:
    config = given(rule, training__acc_freq=3)
    assert rate_factor(config, 4) == factor
    assert optimizer_for(config, 4) == config.optimizer


def test_soap_takes_somewhat_longer_steps_and_looks_back_over_fewer() -> None:
    config = given(optimizer=SOAP, training__acc_freq=2, learning_rate__start_lr=1e-3)
    assert rate_factor(config, 2) == pytest.approx(2**0.25)
    assert rate_factor(given(optimizer=SOAP, learning_rate__start_lr=1e-3), 16) == pytest.approx(2**0.5)
    assert rate_factor(given(optimizer=SOAP), 1) == 1.0
    # Not beyond the largest rate that SOAP stands, nor below the one that was asked for.
    assert rate_factor(given(optimizer=SOAP, learning_rate__start_lr=4e-3), 16) == pytest.approx(5 / 4)
    assert rate_factor(given(optimizer=SOAP, learning_rate__start_lr=1e-2), 16) == 1.0
    assert rate_factor(given(optimizer=SOAP | {"rate_factor": 1}, learning_rate__start_lr=1e-2), 16) == pytest.approx(
        2**0.5
    )
    shortened, before = optimizer_for(config, 2), config.optimizer
    assert isinstance(shortened, SoapConfig)
    assert isinstance(before, SoapConfig)
    assert shortened.beta1 == pytest.approx(before.beta1**2)
    assert shortened.factor_decay == pytest.approx(before.factor_decay**2)
    assert shortened.frequency == round(before.frequency / 2)
    # Sixteen workers do what one does with sixteen micro-batches.
    assert optimizer_for(given(optimizer=SOAP), 16) == optimizer_for(given(optimizer=SOAP, training__acc_freq=16), 1)


def test_the_rate_of_soap_falls_later_where_a_step_has_more_micro_batches() -> None:
    config = given(optimizer=SOAP, training__acc_freq=2)
    assert decay_delay(config, 1) == pytest.approx(2**0.5)
    assert decay_delay(config, 8) == pytest.approx(4.0)
    assert decay_delay(given(optimizer=SOAP), 1) == 1.0
    assert decay_delay(given("linear", optimizer=SOAP), 16) == 1.0
    assert decay_delay(given(), 16) == 1.0


@pytest.mark.parametrize(("rule", "workers"), [("linear", 4), ("sqrt", 4), ("none", 4), ("auto", 1)])
def test_soap_is_as_the_input_says_otherwise(rule: str, workers: int) -> None:
    config = given(rule, optimizer=SOAP)
    assert optimizer_for(config, workers) == config.optimizer


@pytest.mark.parametrize(
    ("optimizer", "rate", "words"),
    [
        (SOAP, 1e-4, "too small"),
        (SOAP, 1e-3, None),
        (SOAP, 3e-3, None),
        (SOAP, 1.2e-2, "too large"),
        (SOAP | {"rate_factor": 1}, 1e-3, "too small"),
        (SOAP | {"rate_factor": 1}, 1e-2, None),
        ({"type": "Adam"}, 1e-5, None),
    ],
)
def test_a_rate_that_soap_would_fail_with_is_told(
    optimizer: dict[str, Any], rate: float, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        warn_about_rate(given(optimizer=optimizer), rate)
    assert words in caplog.text if words else not caplog.text
