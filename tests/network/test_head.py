"""Contraction to the descriptor, the curvature of activations, and where weight gradients go."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from lockstep.gradbuffer import GradientBuffer, buffer_of, give_buffer
from lockstep.network import compiled_nets, contraction, folding
from lockstep.network.activation import get_activation
from lockstep.network.blockwise import LayerPass
from lockstep.network.contraction import AsItIs, Contraction, Quadratic, SideBySide
from lockstep.network.head import Block, energies_and_gradient
from lockstep.network.mlp import fitting_net
from potentials import ACTIVATIONS

AXIS = 3
SMOOTH = [name for name in ACTIVATIONS if name not in ("relu", "relu6", "none", "linear")]


@pytest.fixture(params=["compiled", "plain"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        for module in (compiled_nets, contraction, folding):
            monkeypatch.setattr(module, "kernels_for", lambda x: None)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def square(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("icm,ica->ima", x, x[:, :, :AXIS]).flatten(1)


def below(x: torch.Tensor) -> torch.Tensor:
    """As `square`, without the pairs (m, a) that a pair (a, m) repeats."""
    full = torch.einsum("icm,ica->ima", x, x[:, :, :AXIS])
    return torch.cat([full[:, m, : min(m + 1, AXIS)] for m in range(x.shape[2])], dim=1)


CONTRACTIONS: dict[str, tuple[Contraction, Callable[[torch.Tensor], torch.Tensor]]] = {
    "quadratic": (Quadratic(7, AXIS), square),
    "as_it_is": (AsItIs(1, 6), lambda x: x.flatten(1)),
    "side_by_side": (
        SideBySide([Quadratic(7, AXIS), AsItIs(5)]),
        lambda x: torch.cat([square(x[:, :28].reshape(-1, 4, 7)), x[:, 28:]], dim=1),
    ),
    "folded": (Quadratic(7, AXIS).folded(), below),
    "folded_all": (Quadratic(AXIS, AXIS).folded(), below),
    "folded_side_by_side": (
        SideBySide([AsItIs(5), Quadratic(7, AXIS), Quadratic(4, AXIS)]).folded(),
        lambda x: torch.cat([x[:, :5], below(x[:, 5:33].reshape(-1, 4, 7)), below(x[:, 33:].reshape(-1, 4, 4))], dim=1),
    ),
}
TO_FOLD: dict[str, Contraction] = {
    "quadratic": Quadratic(7, AXIS),
    "quadratic_alone": Quadratic(AXIS, AXIS),
    "one_column": Quadratic(7, 1),
    "as_it_is": AsItIs(1, 6),
    "side_by_side": SideBySide([AsItIs(5), Quadratic(7, AXIS), Quadratic(4, AXIS), AsItIs(2)]),
}


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_contraction_and_its_derivatives_are_those_of_autograd(name: str) -> None:
    contraction, formula = CONTRACTIONS[name]
    x, y = numbers(5, *contraction.shape).requires_grad_(), numbers(5, *contraction.shape, seed=1)
    p, bar = numbers(5, contraction.n_out, seed=2).requires_grad_(), numbers(5, contraction.n_out, seed=3)
    descriptor = formula(x)
    torch.testing.assert_close(contraction.value(x.detach()), descriptor.detach())
    (gradient,) = torch.autograd.grad(descriptor, x, p, create_graph=True)
    torch.testing.assert_close(contraction.pull_back(x.detach(), p.detach()), gradient.detach())
    _, along = torch.func.jvp(formula, (x.detach(),), (y,))
    torch.testing.assert_close(contraction.push_forward(x.detach(), y), along)
    (expected,) = torch.autograd.grad((gradient * y).sum() + (descriptor * bar).sum(), x)
    torch.testing.assert_close(contraction.backward(x.detach(), y, p.detach(), bar), expected)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("buffer", ["autograd", "fresh", "stale"])
@pytest.mark.parametrize("n_parameters", [0, 2])
@pytest.mark.parametrize("name", TO_FOLD)
def test_a_fold_changes_no_energy_and_no_gradient(
    name: str, n_parameters: int, buffer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same nets, given every number of the descriptor and given each once, by two nets with rows of their own."""
    contraction, generator = TO_FOLD[name], torch.Generator().manual_seed(3)
    n_in = contraction.n_out + n_parameters
    nets = [fitting_net(n_in, (n_in + 1, 8), "tanh", True, torch.float64, generator) for _ in range(2)]
    blocks = [Block(slice(0, 3), nets[0]), Block(slice(3, 7), nets[1])]
    x, parameters = numbers(7, *contraction.shape), numbers(7, n_parameters, seed=5) if n_parameters else None

    def answers() -> list[torch.Tensor]:
        weights = [weight for net in nets for weight in net.parameters()]
        for weight in weights:
            weight.grad = None if buffer == "autograd" else torch.full_like(weight, 0.5 if buffer == "fresh" else 7e7)
            if weight.grad is not None:
                give_buffer(weight, own := GradientBuffer(weight.grad))
                own.stale = buffer == "stale"
        given = x.clone().requires_grad_()
        energy, gradient = energies_and_gradient(given, contraction, parameters, blocks)
        ((energy**2).sum() + (gradient**3).sum()).backward()
        found = [weight.grad for weight in weights if weight.dim() == 2 and weight.shape[1] > 1]
        assert given.grad is not None
        return [energy.detach(), gradient.detach(), given.grad, *(grad for grad in found if grad is not None)]

    folded = answers()
    monkeypatch.setattr(type(contraction), "folded", lambda self: self)
    in_full = answers()
    assert len(folded) == len(in_full) == 7
    for found, expected in zip(folded, in_full, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [7 * AXIS, 14 * AXIS], ids=["same", "double"])
def test_a_layer_that_passes_its_inputs_on_is_given_all_of_them(width: int) -> None:
    net = fitting_net(7 * AXIS, (width, 8), "tanh", False, torch.float64, torch.Generator().manual_seed(3))
    x = numbers(5, 4, 7)
    energy, _ = energies_and_gradient(x, Quadratic(7, AXIS), None, [Block(slice(0, 5), net)])
    torch.testing.assert_close(energy, net.value(square(x)).squeeze(1))


def test_products_are_of_numbers_that_differ() -> None:
    """The first layer of the water example has 1600 inputs, of which 1480 differ."""
    folded = Quadratic(100, 16).folded()
    assert folded.n_out == folded.value(numbers(2, 4, 100)).shape[1] == 1480
    net = fitting_net(1602, (8, 8), "tanh", True, torch.float64, torch.Generator().manual_seed(3))
    first = LayerPass([Block(slice(0, 2), net)], [net.layers[0]], numbers(2, 1482), folded.squares)
    [part] = first._parts
    assert [tuple(factor.shape) for _, factor in part.factors] == [(136, 8), (1346, 8)]


@pytest.mark.parametrize("name", SMOOTH)
def test_curvature_is_the_derivative_of_the_slope(name: str) -> None:
    activation = get_activation(name)
    x = torch.tensor([-5.0, -1.3, -0.2, 0.3, 0.45, 1.1, 2.8, 3.2, 6.1], dtype=torch.float64, requires_grad=True)
    y = activation.value(x)
    slope = activation.slope(x, y)
    (expected,) = torch.autograd.grad(slope.sum(), x)
    found = activation.curvature(x.detach(), y.detach(), slope.detach())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_weight_gradients_go_into_the_buffer_when_there_is_one() -> None:
    generator = torch.Generator().manual_seed(3)
    net = fitting_net(7 * AXIS, (8, 8), "tanh", True, torch.float64, generator)
    x = numbers(5, 4, 7)

    def gradients() -> list[torch.Tensor]:
        energy, gradient = energies_and_gradient(x, Quadratic(7, AXIS), None, [Block(slice(0, 5), net)])
        ((energy**2).sum() + (gradient**3).sum()).backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    expected = gradients()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
        buffer = GradientBuffer(parameter.grad)
        buffer.stale = False
        give_buffer(parameter, buffer)
    for found, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, 1.0 + wanted)
    for parameter in net.parameters():
        parameter.grad = None
        give_buffer(parameter, GradientBuffer(torch.full_like(parameter, float("nan"))))
    gradients()
    for parameter, wanted in zip(net.parameters(), expected, strict=True):
        buffer = buffer_of(parameter)
        torch.testing.assert_close(buffer.view if parameter.grad is None and buffer else parameter.grad, wanted)


def test_frozen_layers_get_no_gradient() -> None:
    net = fitting_net(7 * AXIS, (8, 8), "tanh", True, torch.float64, torch.Generator().manual_seed(3))
    net.layers[1].requires_grad_(False)
    energy, gradient = energies_and_gradient(numbers(5, 4, 7), Quadratic(7, AXIS), None, [Block(slice(0, 5), net)])
    (energy.sum() + gradient.sum()).backward()
    assert net.layers[1].weight.grad is None
    assert net.layers[0].weight.grad is not None


def test_nothing_is_left_for_the_garbage_collector() -> None:
    """A cycle would keep the largest arrays of a step alive until the collector comes by."""
    net = fitting_net(7 * AXIS, (8, 8), "tanh", True, torch.float64, torch.Generator().manual_seed(3))
    x = numbers(5, 4, 7).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        energy, gradient = energies_and_gradient(x, Quadratic(7, AXIS), None, [Block(slice(0, 5), net)])
        (energy.sum() + gradient.sum()).backward()
        del energy, gradient
        assert gc.collect() == 0
    finally:
        gc.enable()
