"""The optimizer's numbers, and its state through plain tensors bit for bit."""

from __future__ import annotations

import pytest
import torch

from lockstep.config.optimizer import AdamConfig, AdamWConfig
from lockstep.errors import CheckpointError
from lockstep.training.optimizer import (
    clip_gradients,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
)

CONFIGS = [AdamConfig(), AdamConfig(adam_beta1=0.8, weight_decay=0.01), AdamWConfig(adam_beta2=0.9)]


def make_model(dtype=torch.float64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(dtype)
    model[2].bias.requires_grad_(False)
    return model


def train(model, optimizer, steps):
    for step in steps:
        set_learning_rate(optimizer, 1e-2 / (1 + step))
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64).to(model[0].weight.dtype)
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


def test_an_update_is_that_of_adam():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = make_optimizer([("weight", weight)], AdamConfig())
    set_learning_rate(optimizer, 0.1)
    weight.grad = torch.tensor([3.0, -0.5], dtype=torch.float64)
    optimizer.step()

    # The first update of Adam is the learning rate times the sign of the gradient.
    assert weight.tolist() == pytest.approx([0.9, -1.9], rel=1e-7)


def test_weight_decay_is_a_penalty_for_adam_and_decoupled_for_adamw():
    results = []
    for config in (AdamConfig(weight_decay=0.5), AdamWConfig(weight_decay=0.5)):
        weight = torch.nn.Parameter(torch.tensor([4.0], dtype=torch.float64))
        optimizer = make_optimizer([("weight", weight)], config)
        set_learning_rate(optimizer, 0.1)
        weight.grad = torch.tensor([-1.0], dtype=torch.float64)
        optimizer.step()
        results.append(weight.item())

    # Adam: gradient -1 + 0.5 * 4 = 1, one step down. AdamW: shrunk by 0.1 * 0.5, then one step up.
    assert results == pytest.approx([3.9, 4.0 * 0.95 + 0.1], rel=1e-7)


def test_nothing_moves_before_a_learning_rate_is_set():
    model = make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = make_optimizer(model.named_parameters(), AdamConfig())
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()

    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_goes_on_bit_for_bit_after_the_state_went_through_tensors(config, dtype):
    whole = make_model(dtype)
    optimizer = make_optimizer(whole.named_parameters(), config)
    train(whole, optimizer, range(3))
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    weights = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    train(whole, optimizer, range(3, 6))

    restarted = make_model(dtype)
    restarted.load_state_dict(weights)
    another = make_optimizer(restarted.named_parameters(), config)
    load_optimizer_tensors(another, saved)
    train(restarted, another, range(3, 6))

    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), restarted.parameters(), strict=True))
    assert optimizer_tensors(another).keys() == saved.keys()
    assert optimizer_tensors(another)["0.weight.step"].item() == 6


def test_the_state_is_named_after_the_trainable_parameters():
    model = make_model()
    optimizer = make_optimizer(model.named_parameters(), AdamConfig())
    assert optimizer_tensors(optimizer) == {}
    train(model, optimizer, range(1))

    assert set(optimizer_tensors(optimizer)) == {
        f"{name}.{quantity}"
        for name in ("0.weight", "0.bias", "2.weight")
        for quantity in ("step", "exp_avg", "exp_avg_sq")
    }


def test_the_loaded_state_is_a_copy():
    model = make_model()
    optimizer = make_optimizer(model.named_parameters(), AdamConfig())
    train(model, optimizer, range(1))
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    load_optimizer_tensors(optimizer, saved)
    train(model, optimizer, range(1))

    assert saved["0.bias.step"].item() == 1


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("other.weight.exp_avg", (4, 3), "other.weight"), ("0.weight.exp_avg", (3, 4), r"\(3, 4\)")],
)
def test_state_of_another_model_is_refused(name, shape, message):
    optimizer = make_optimizer(make_model().named_parameters(), AdamConfig())

    with pytest.raises(CheckpointError, match=message):
        load_optimizer_tensors(optimizer, {name: torch.zeros(shape)})


@pytest.mark.parametrize(("max_norm", "expected"), [(0.0, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_gradients_are_clipped_to_the_norm(max_norm, expected):
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3)]
    parameters[0].grad = torch.tensor([3.0], dtype=torch.float64)
    parameters[1].grad = torch.tensor([-4.0], dtype=torch.float64)

    norm = clip_gradients(parameters, max_norm)

    assert norm is None if max_norm == 0 else norm.item() == pytest.approx(5.0)
    assert [p.grad.item() for p in parameters[:2]] == pytest.approx([0.6 * expected, -0.8 * expected], rel=1e-6)
    assert parameters[2].grad is None
