"""Activation functions, their slopes, and the slopes' own gradients."""

from __future__ import annotations

import pytest
import torch

from lockstep.config.nets import ACTIVATIONS as CONFIGURED
from lockstep.network.activation import get_activation
from potentials import ACTIVATIONS
from reference_model import textbook_activation

# Away from 0, 3 and 6, where some have kinks.
X = torch.tensor([-6.3, -2.5, -1.1, -0.3, 0.2, 0.49, 0.7, 1.3, 2.9, 3.1, 5.7, 6.4, 21.0], dtype=torch.float64)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_is_the_textbook_function(name: str) -> None:
    assert get_activation(name).value(X).numpy() == pytest.approx(
        textbook_activation(name)(X).numpy(), rel=1e-13, abs=1e-14
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slope_is_the_derivative_and_can_be_differentiated_again(name: str) -> None:
    activation, x, again = get_activation(name), X.clone().requires_grad_(), X.clone().requires_grad_()
    slope = activation.slope(x, activation.value(x))
    (expected,) = torch.autograd.grad(textbook_activation(name)(again).sum(), again, create_graph=True)
    assert slope.detach().numpy() == pytest.approx(expected.detach().numpy(), rel=1e-12, abs=1e-13)
    if expected.requires_grad and slope.requires_grad:
        (bend,) = torch.autograd.grad(slope.sum(), x)
        (expected_bend,) = torch.autograd.grad(expected.sum(), again)
        assert bend.numpy() == pytest.approx(expected_bend.numpy(), rel=1e-11, abs=1e-12)
    else:
        assert name in ("relu", "relu6", "none", "linear")


@pytest.mark.parametrize("threshold", [0.5, 3.0, 10.0])
def test_silut_is_smooth_at_its_threshold(threshold: float) -> None:
    activation = get_activation(f"silut:{threshold}")
    x = torch.tensor([threshold - 1e-9, threshold + 1e-9], dtype=torch.float64)
    value = activation.value(x)
    slope = activation.slope(x, value)
    assert value[0].item() == pytest.approx(value[1].item(), abs=1e-8)
    assert slope[0].item() == pytest.approx(slope[1].item(), abs=1e-8)


def test_silut_alone_has_threshold_three() -> None:
    assert torch.equal(get_activation("silut").value(X), get_activation("silut:3.0").value(X))


def test_every_activation_of_the_input_file_exists() -> None:
    for name in CONFIGURED:
        get_activation(name)
    assert set(CONFIGURED) <= set(ACTIVATIONS)
