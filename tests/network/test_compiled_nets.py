"""Nets as compiled code: what tensor operations give, for all shapes, precisions and threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lockstep.gradbuffer import GradientBuffer, buffer_of, give_buffer
from lockstep.network import net_kernels, nodes
from lockstep.network.blockwise import Block
from lockstep.network.compiled_nets import CompiledNets, usable
from lockstep.network.contraction import Quadratic
from lockstep.network.folding import Square
from lockstep.network.head import NetsPass
from lockstep.network.mlp import MLP, embedding_net, fitting_net
from lockstep.products.openblas import loaded

pytestmark = pytest.mark.skipif(loaded() is None, reason="this NumPy was not built with OpenBLAS")
SHAPES = {"equal": (8, 8, 8), "double": (6, 12, 24), "shrinking": (9, 5, 3), "one": (7,), "as_input": (22, 22)}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.fixture(params=[1, 3])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr("lockstep.network.compiled_nets._WORTH_IT", 1)
    monkeypatch.setattr("lockstep.network.nodes._WORTH_IT", 1)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def three_nets(shape: tuple[int, ...], timestep: bool, dtype: torch.dtype, n_in: int = 22) -> list[Block]:
    """Nets for 4, 1 and 6 rows."""
    generator = torch.Generator().manual_seed(3)
    nets = [fitting_net(n_in, shape, "tanh", timestep, dtype, generator) for _ in range(3)]
    return [Block(slice(*rows), net) for rows, net in zip(((0, 4), (4, 5), (5, 11)), nets, strict=True)]


def way(kind: type[CompiledNets] | type[NetsPass], blocks: list[Block], x: torch.Tensor, *squares: Square) -> list:
    """All that a way forward and back gives, weights' cotangents as they end up in buffers included."""
    nets = kind(blocks, x.clone(), squares)
    results = [nets.energies(), nets.pulled_back()]
    energy_bar, gradient_bar = numbers(len(x), seed=1, dtype=x.dtype), numbers(*x.shape, seed=2, dtype=x.dtype)
    bar, of_weights = nets.backward(energy_bar, gradient_bar)
    for weight, found in zip((w for block in blocks for w in block.net.parameters()), of_weights, strict=True):
        buffer = buffer_of(weight)
        results.append(buffer.view.clone() if found is None and buffer is not None else found)
    return [*results, bar]


def alike(found: list, expected: list, dtype: torch.dtype) -> None:
    for mine, wanted in zip(found, expected, strict=True):
        assert (mine is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(mine, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float64", "float32"])
@pytest.mark.parametrize("timestep", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_compiled_nets_are_those_of_tensor_operations(name: str, timestep: bool, dtype: torch.dtype) -> None:
    blocks, x = three_nets(SHAPES[name], timestep, dtype), numbers(11, 22, dtype=dtype)
    alike(way(CompiledNets, blocks, x), way(NetsPass, blocks, x), dtype)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("buffer", ["fresh", "stale", "other precision"])
def test_weights_gradients_go_where_they_are_wanted(buffer: str) -> None:
    """Of folded inputs too, into what is there already or instead of it; and none of a layer that is frozen."""
    squares = Quadratic(7, 3).folded().squares
    blocks, x = three_nets(SHAPES["equal"], True, torch.float64, n_in=23), numbers(11, 20)
    blocks[0].net.layers[1].requires_grad_(False)
    dtype = torch.float32 if buffer == "other precision" else torch.float64
    results = []
    for kind in (CompiledNets, NetsPass):
        for block in blocks:
            for weight in block.net.parameters():
                own = GradientBuffer(torch.full(weight.shape, 0.5, dtype=dtype))
                own.stale = buffer == "stale"
                give_buffer(weight, own)
        results.append(way(kind, blocks, x, *squares))
    alike(*results, dtype)


def test_mixed_precision_casts_weights() -> None:
    blocks, x = three_nets(SHAPES["double"], True, torch.float64), numbers(11, 22, dtype=torch.float32)
    found, expected = way(CompiledNets, blocks, x), way(NetsPass, blocks, x)
    assert found[0].dtype == found[1].dtype == torch.float32
    alike(found, expected, torch.float32)


def test_what_cannot_be_compiled_is_left_to_tensor_operations() -> None:
    generator = torch.Generator().manual_seed(3)

    def possible(shape: tuple[int, ...], activation: str, x: torch.Tensor) -> bool:
        net = fitting_net(22, shape, activation, True, torch.float64, generator)
        return usable([Block(slice(0, 2), net)], x)

    assert possible((8,), "tanh", numbers(2, 22))
    assert not possible((8,), "gelu", numbers(2, 22))
    assert not possible((), "tanh", numbers(2, 22))
    assert not possible((8,), "tanh", torch.empty(2, 22, dtype=torch.float64, device="meta"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_numbers_that_are_not_finite_are_not_lost(bad: float) -> None:
    blocks, x = three_nets(SHAPES["equal"], True, torch.float64), numbers(11, 22)
    x[4, 3] = bad
    for found, expected in zip(way(CompiledNets, blocks, x)[:2], way(NetsPass, blocks, x)[:2], strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_tanh_is_right_to_three_units_in_the_last_place() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 1.5, 20000), np.logspace(-300, 2.6, 20000), -np.logspace(-12, 1.5, 5000)])
    found = np.array([net_kernels.tanh(one) for one in x])
    exact = np.tanh(x.astype(np.longdouble))
    assert np.abs((found - exact) / np.spacing(np.abs(exact).astype(np.float64))).max() < 3.0
    special = [0.0, 350.0, 1e300, np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal([net_kernels.tanh(one) for one in special], np.tanh(special))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("timestep", [True, False])
def test_coefficients_and_their_gradients_are_those_of_autograd(
    timestep: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, whatever the precision of the weights."""
    generator = torch.Generator().manual_seed(4)
    nets = [embedding_net((5, 10, 10), "tanh", timestep, dtype, generator) for _ in range(3)]
    nets[1].layers[1].requires_grad_(False)
    points, fit, bar = numbers(4, 7), numbers(6, 7, seed=1), numbers(4, 6, 10, seed=2)

    def answers() -> list[torch.Tensor | None]:
        found = nodes.node_coefficients(nets, points, [2, 0, 1, 2], fit)
        for net in nets:
            net.zero_grad()
        found.backward(bar)
        return [found.detach(), *(weight.grad for net in nets for weight in net.parameters())]

    compiled = answers()
    monkeypatch.setattr(nodes, "loaded", lambda: None)
    monkeypatch.setattr(MLP, "value", in_float64)
    alike(compiled, answers(), dtype)


def in_float64(net: MLP, x: torch.Tensor) -> torch.Tensor:
    for layer in net.layers:
        x = layer.value(x)
    return x
