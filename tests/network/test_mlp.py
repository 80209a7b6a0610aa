"""Layers and nets: residual connections, time steps, pull-backs, initial weights."""

from __future__ import annotations

import pytest
import torch

from lockstep.network.mlp import MLP, Layer, embedding_net, fitting_net


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def layer(n_in: int, n_out: int, timestep: bool = False, residual: bool = True) -> Layer:
    return Layer(
        n_in,
        n_out,
        activation="tanh",
        residual=residual,
        timestep=timestep,
        dtype=torch.float64,
        generator=generator(),
    )


def random_input(n: int, width: int) -> torch.Tensor:
    return torch.randn(n, width, dtype=torch.float64, generator=generator())


@pytest.mark.parametrize("timestep", [True, False])
@pytest.mark.parametrize(("n_in", "n_out", "copies"), [(4, 4, 1), (4, 8, 2), (4, 6, 0), (4, 3, 0)])
def test_a_layer_adds_its_input_where_widths_allow(n_in: int, n_out: int, copies: int, timestep: bool) -> None:
    one, x = layer(n_in, n_out, timestep), random_input(5, n_in)
    y = torch.tanh(x @ one.weight + one.bias) * (one.idt if timestep else 1.0)
    expected = y + torch.cat([x] * copies, dim=1) if copies else y
    assert torch.allclose(one(x)[0], expected, rtol=1e-14, atol=1e-14)


def test_a_layer_without_residual_adds_nothing() -> None:
    one, x = layer(4, 4, residual=False), random_input(5, 4)
    assert torch.allclose(one(x)[0], torch.tanh(x @ one.weight + one.bias), rtol=1e-14, atol=1e-14)


NETS = {
    "equal": [6, 6],
    "doubling": [3, 6, 12],
    "other": [5, 7, 4],
}


@pytest.mark.parametrize("resnet_dt", [True, False])
@pytest.mark.parametrize("widths", NETS.values(), ids=NETS)
def test_pull_back_is_the_gradient_by_autograd(widths: list[int], resnet_dt: bool) -> None:
    net = fitting_net(4, widths, "tanh", resnet_dt, torch.float64, generator())
    x = random_input(7, 4).requires_grad_()
    value, slopes = net(x)
    seed = random_input(7, 1)
    (expected,) = torch.autograd.grad((value * seed).sum(), x, create_graph=True)
    found = net.pull_back(slopes, seed)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)
    weights = list(net.parameters())[:-1]
    by_autograd = torch.autograd.grad((expected**2).sum(), weights, retain_graph=True)
    by_hand = torch.autograd.grad((found**2).sum(), weights)
    for a, b in zip(by_hand, by_autograd, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("resnet_dt", [True, False])
@pytest.mark.parametrize("widths", NETS.values(), ids=NETS)
def test_push_forward_is_the_derivative_along_a_direction(widths: list[int], resnet_dt: bool) -> None:
    net = fitting_net(4, widths, "tanh", resnet_dt, torch.float64, generator())
    x, along = random_input(7, 4), random_input(7, 4)
    for found, expected in zip(net.push_forward(x, along), torch.func.jvp(net.value, (x,), (along,)), strict=True):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_an_embedding_net_maps_one_number_to_its_last_width() -> None:
    net = embedding_net([4, 8], "tanh", False, torch.float64, generator())
    assert net(random_input(5, 1))[0].shape == (5, 8)


def test_a_fitting_net_ends_in_a_linear_layer() -> None:
    net = fitting_net(3, [5], "tanh", True, torch.float64, generator())
    x = random_input(6, 3)
    hidden = net.layers[0](x)[0]
    last = net.layers[-1]
    assert isinstance(last, Layer)
    assert torch.allclose(net(x)[0], hidden @ last.weight + last.bias, rtol=1e-14)


def test_time_steps_belong_to_residual_layers_only() -> None:
    net = fitting_net(3, [7, 7, 14, 5], "tanh", True, torch.float64, generator())
    assert [has_step(one) for one in net.layers] == [False, True, True, False, False]


def has_step(one: torch.nn.Module) -> bool:
    assert isinstance(one, Layer)
    return one.idt is not None


def test_initial_weights_have_the_documented_spread() -> None:
    one = layer(300, 300, timestep=True)
    assert one.weight.std().item() == pytest.approx((1 / 600) ** 0.5, rel=0.02)
    assert one.bias.std().item() == pytest.approx(1.0, rel=0.15)
    assert one.idt is not None
    assert one.idt.mean().item() == pytest.approx(0.1, abs=1e-3)


def test_float32_starts_from_the_weights_of_float64() -> None:
    double, single = (
        embedding_net([4, 8], "tanh", True, dtype, generator()) for dtype in (torch.float64, torch.float32)
    )
    assert isinstance(double, MLP)
    for a, b in zip(double.parameters(), single.parameters(), strict=True):
        assert torch.equal(a.to(torch.float32), b)
