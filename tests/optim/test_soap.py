"""SOAP's numbers, its state through plain tensors bit for bit, and what it must not depend on."""

from __future__ import annotations

import pytest
import torch

from lockstep.config.optimizer import AdamConfig, SoapConfig
from lockstep.errors import CheckpointError
from lockstep.optim.optimizer import make_optimizer
from lockstep.optim.soap import is_matrix, sides_of
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.launchers import alone

GROUP = SoloGroup(alone.detect({}))
SMALL = SoapConfig(min_side=4, frequency=3)
IN_BLOCKS = SoapConfig(min_side=4, frequency=3, max_block=5)
"""Sides of 8 in two blocks of 4, of 6 in two of 3."""
QUANTITIES = {"step", "exp_avg", "exp_avg_sq", "factor_left", "basis_left", "factor_right", "basis_right"}


def make_model(dtype=torch.float64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)).to(dtype)
    model[2].bias.requires_grad_(False)
    return model


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(9, 6, generator=generator, dtype=torch.float64).to(model[0].weight.dtype)
        model.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step(1e-2 / (1 + step))


def descend(config, gradient, start, lr, steps):
    """Where an optimizer gets to, from gradients as a function of the weights."""
    weight = torch.nn.Parameter(start.clone())
    optimizer = make_optimizer([("weight", weight)], config, GROUP)
    for step in range(steps):
        weight.grad = gradient(weight.detach(), step)
        optimizer.step(lr * (1 - step / steps))
    return weight.detach()


def rotation(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


def correlated(rows, columns, seed, smallest=-2):
    """A linear regression whose inputs and outputs are strongly correlated: Adam's hard case."""
    left = rotation(rows, seed) * torch.logspace(0, smallest, rows, dtype=torch.float64)
    right = rotation(columns, seed + 1) * torch.logspace(0, smallest, columns, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed + 2)
    target = torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    def gradient(weight, step):
        noise = torch.Generator().manual_seed(step)
        sample = left @ torch.randn(rows, 4 * rows, generator=noise, dtype=torch.float64)
        return (sample @ (sample.T @ (weight - target))) @ right @ right.T

    def error(weight):
        return float((left.T @ (weight - target) @ right).norm())

    return gradient, error


def test_a_problem_of_correlated_rows_and_columns_is_solved_far_better_than_by_adam():
    gradient, error = correlated(24, 20, seed=5)
    start = torch.zeros(24, 20, dtype=torch.float64)
    best = [
        min(error(descend(config, gradient, start, lr, 300)) for lr in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1))
        for config in (SoapConfig(), AdamConfig())
    ]
    assert best[0] < 0.3 * best[1]


def test_other_coordinates_make_no_difference():
    """The same problem with its axes hidden is as easy, as it is not for Adam."""
    left, right = rotation(24, 1), rotation(20, 2)
    gradient, error = correlated(24, 20, seed=7)
    start = torch.zeros(24, 20, dtype=torch.float64)

    def turned(weight, step):
        return left @ gradient(left.T @ weight @ right, step) @ right.T

    straight = error(descend(SoapConfig(), gradient, start, 3e-3, 200))
    assert error(left.T @ descend(SoapConfig(), turned, start, 3e-3, 200) @ right) == pytest.approx(straight, rel=0.1)


def test_a_side_in_blocks_solves_what_correlates_within_them():
    """Blocks know nothing of each other, and each finds its own axes: hiding these makes no difference."""
    gradient, error = correlated(24, 20, seed=5)
    start = torch.zeros(24, 20, dtype=torch.float64)
    config, rates = SoapConfig(min_side=4, max_block=12), (3e-3, 1e-2, 3e-2)
    left = torch.block_diag(rotation(12, 1), rotation(12, 2))
    right = torch.block_diag(rotation(10, 3), rotation(10, 4))

    def turned(weight, step):
        return left @ gradient(left.T @ weight @ right, step) @ right.T

    best = min(error(descend(config, gradient, start, lr, 300)) for lr in rates)
    hidden = min(error(left.T @ descend(config, turned, start, lr, 300) @ right) for lr in rates)
    adam = min(error(descend(AdamConfig(), gradient, start, lr, 300)) for lr in (*rates, 1e-1))
    assert best < 0.7 * adam
    assert hidden == pytest.approx(best, rel=0.2)


def test_blocks_as_long_as_the_side_are_the_side():
    gradient, _ = correlated(18, 16, seed=3)
    start = torch.zeros(18, 16, dtype=torch.float64)
    whole, one = (descend(SoapConfig(max_block=n), gradient, start, 1e-3, 30) for n in (512, 18))
    two = descend(SoapConfig(max_block=17), gradient, start, 1e-3, 30)
    assert torch.equal(whole, one)
    assert not torch.allclose(whole, two)


@pytest.mark.parametrize("scale", [1e-12, 1e8])
def test_updates_do_not_depend_on_the_size_of_the_loss(scale):
    gradient, _ = correlated(18, 18, seed=7, smallest=-0.5)
    start = torch.zeros(18, 18, dtype=torch.float64)
    plain = descend(SoapConfig(), gradient, start, 1e-3, 25)
    scaled = descend(SoapConfig(), lambda weight, step: scale * gradient(weight, step), start, 1e-3, 25)
    torch.testing.assert_close(scaled, plain, rtol=0.02, atol=2e-4)


def test_directions_without_a_gradient_are_left_alone():
    """Rounding must not be taken for a gradient there, however small the true ones are next to it."""
    generator = torch.Generator().manual_seed(1)
    only = torch.randn(20, 1, generator=generator, dtype=torch.float64)

    def gradient(weight, step):
        return only @ torch.randn(1, 18, generator=generator, dtype=torch.float64)

    moved = descend(SoapConfig(), gradient, torch.zeros(20, 18, dtype=torch.float64), 1e-3, 30)
    along = only / only.norm()
    across = moved - along @ (along.T @ moved)
    assert across.norm() < 0.02 * moved.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [1, 3, 7])
@pytest.mark.parametrize("config", [SMALL, IN_BLOCKS], ids=["whole", "in blocks"])
def test_training_goes_on_bit_for_bit_after_the_state_went_through_tensors(dtype, stop, config):
    whole = make_model(dtype)
    optimizer = make_optimizer(whole.named_parameters(), config, GROUP)
    train(whole, optimizer, range(stop))
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    weights = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    train(whole, optimizer, range(stop, stop + 8))

    restarted = make_model(dtype)
    restarted.load_state_dict(weights)
    another = make_optimizer(restarted.named_parameters(), config, GROUP)
    another.load(saved)
    train(restarted, another, range(stop, stop + 8))

    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), restarted.parameters(), strict=True))
    assert {name: tensor.tolist() for name, tensor in optimizer.tensors().items()} == {
        name: tensor.tolist() for name, tensor in another.tensors().items()
    }


def test_the_state_is_named_after_the_parameters():
    model = make_model()
    optimizer = make_optimizer(model.named_parameters(), SMALL, GROUP)
    assert optimizer.tensors() == {}
    train(model, optimizer, range(2))

    expected = {f"{name}.{quantity}" for name in ("0.weight", "2.weight") for quantity in QUANTITIES}
    assert set(optimizer.tensors()) == expected | {f"0.bias.{name}" for name in ("step", "exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize(("min_side", "level", "words"), [
    (4, "INFO", "SOAP for 1 matrices with 32 weights, AdamW at the same rate for 8"),
    (5, "WARNING", "no matrix has 5 rows and columns, and all of it is AdamW"),
])  # fmt: skip
def test_it_says_what_it_serves(min_side, level, words, caplog):
    parameters = {"matrix": torch.nn.Parameter(torch.zeros(4, 8)), "bias": torch.nn.Parameter(torch.zeros(8))}
    with caplog.at_level("INFO"):
        make_optimizer(parameters.items(), SoapConfig(min_side=min_side), GROUP)
    [record] = caplog.records
    assert record.levelname == level
    assert words in record.message


def test_what_is_no_matrix_is_left_to_adam():
    config = SoapConfig(min_side=4, max_side=10, max_block=5)
    shapes = {(3, 8): None, (8,): None, (4, 8): {0: 1, 1: 2}, (8, 11): {0: 2}, (11, 5): {1: 1}, (11, 11): None}
    for shape, sides in shapes.items():
        parameter = torch.nn.Parameter(torch.zeros(shape))
        assert is_matrix(parameter, config) == (sides is not None)
        assert sides is None or sides_of(parameter, config) == sides


@pytest.mark.parametrize("shape", [(6, 8), (40, 8), (8, 40)])
def test_it_runs_where_no_number_can_be_looked_at(shape):
    """As on a GPU, where looking at a number means waiting for all that was asked for before."""
    weight = torch.nn.Parameter(torch.zeros(shape, device="meta"))
    config = SoapConfig(min_side=4, max_side=20, max_block=5, weight_decay=0.1)
    optimizer = make_optimizer([("weight", weight)], config, GROUP)
    for _ in range(12):
        weight.grad = torch.zeros(shape, device="meta")
        optimizer.step(0.1)


def test_weight_decay_shrinks_matrices_and_the_rest_alike():
    parameters = {"matrix": torch.nn.Parameter(torch.ones(6, 6)), "bias": torch.nn.Parameter(torch.ones(6))}
    optimizer = make_optimizer(parameters.items(), SoapConfig(min_side=4, weight_decay=0.5, rate_factor=1), GROUP)
    for _ in range(2):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(0.1)
    assert parameters["bias"].tolist() == pytest.approx([0.95**2] * 6)
    # The first gradient only gives the basis.
    assert parameters["matrix"][0].tolist() == pytest.approx([0.95] * 6)


def test_state_of_other_shapes_is_refused():
    saved = {}
    for config in (SMALL, SoapConfig(min_side=4, max_side=6), IN_BLOCKS, AdamConfig()):
        model = make_model()
        optimizer = make_optimizer(model.named_parameters(), config, GROUP)
        train(model, optimizer, range(2))
        saved[config] = optimizer.tensors()
    optimizer = make_optimizer(make_model().named_parameters(), SMALL, GROUP)
    for config in list(saved)[1:]:
        with pytest.raises(CheckpointError, match=r"0\.weight .* expected basis_left \(8, 8\)"):
            optimizer.load(saved[config])
    with pytest.raises(CheckpointError, match="other"):
        optimizer.load({"other.step": torch.zeros(())})
