"""The optimizer's numbers, and its state through plain tensors bit for bit."""

from __future__ import annotations

import pytest
import torch

from lockstep.config.optimizer import AdamConfig, AdamWConfig
from lockstep.errors import CheckpointError
from lockstep.optim.optimizer import clip_gradients, make_optimizer
from lockstep.parallel.engines.solo import SoloGroup
from lockstep.parallel.launchers import alone

GROUP = SoloGroup(alone.detect({}))
CONFIGS = [AdamConfig(), AdamConfig(adam_beta1=0.8, weight_decay=0.01), AdamWConfig(adam_beta2=0.9)]


def make_model(dtype=torch.float64):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(dtype)
    model[2].bias.requires_grad_(False)
    return model


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64).to(model[0].weight.dtype)
        model.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step(1e-2 / (1 + step))


def test_an_update_is_that_of_adam():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = make_optimizer([("weight", weight)], AdamConfig(), GROUP)
    weight.grad = torch.tensor([3.0, -0.5], dtype=torch.float64)
    optimizer.step(0.1)

    # The first update of Adam is the learning rate times the sign of the gradient.
    assert weight.tolist() == pytest.approx([0.9, -1.9], rel=1e-7)


def test_weight_decay_is_a_penalty_for_adam_and_decoupled_for_adamw():
    results = []
    for config in (AdamConfig(weight_decay=0.5), AdamWConfig(weight_decay=0.5)):
        weight = torch.nn.Parameter(torch.tensor([4.0], dtype=torch.float64))
        optimizer = make_optimizer([("weight", weight)], config, GROUP)
        weight.grad = torch.tensor([-1.0], dtype=torch.float64)
        optimizer.step(0.1)
        results.append(weight.item())

    # Adam: gradient -1 + 0.5 * 4 = 1, one step down. AdamW: shrunk by 0.1 * 0.5, then one step up.
    assert results == pytest.approx([3.9, 4.0 * 0.95 + 0.1], rel=1e-7)


@pytest.mark.parametrize("config", CONFIGS)
def test_updates_are_those_of_torch(config):
    """Several parameters, one of which has no gradient now and then."""
    ours, theirs = make_model(), make_model()
    optimizer = make_optimizer(ours.named_parameters(), config, GROUP)
    kind = torch.optim.AdamW if config.type == "AdamW" else torch.optim.Adam
    betas = (config.adam_beta1, config.adam_beta2)
    reference = kind([p for p in theirs.parameters() if p.requires_grad], betas=betas, weight_decay=config.weight_decay)
    for step in range(5):
        for model in (ours, theirs):
            model.zero_grad()
            model(torch.full((2, 3), 1.0 + step, dtype=torch.float64)).square().sum().backward()
            if step == 2:
                model[0].bias.grad = None
        optimizer.step(0.1)
        reference.param_groups[0]["lr"] = 0.1
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_goes_on_bit_for_bit_after_the_state_went_through_tensors(config, dtype):
    whole = make_model(dtype)
    optimizer = make_optimizer(whole.named_parameters(), config, GROUP)
    train(whole, optimizer, range(3))
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    weights = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    train(whole, optimizer, range(3, 6))

    restarted = make_model(dtype)
    restarted.load_state_dict(weights)
    another = make_optimizer(restarted.named_parameters(), config, GROUP)
    another.load(saved)
    train(restarted, another, range(3, 6))

    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), restarted.parameters(), strict=True))
    assert another.tensors().keys() == saved.keys()
    assert another.tensors()["0.weight.step"].item() == 6


def test_the_state_is_named_after_the_trainable_parameters():
    model = make_model()
    optimizer = make_optimizer(model.named_parameters(), AdamConfig(), GROUP)
    assert optimizer.tensors() == {}
    train(model, optimizer, range(1))

    assert set(optimizer.tensors()) == {
        f"{name}.{quantity}"
        for name in ("0.weight", "0.bias", "2.weight")
        for quantity in ("step", "exp_avg", "exp_avg_sq")
    }


def test_the_loaded_state_is_a_copy():
    model = make_model()
    optimizer = make_optimizer(model.named_parameters(), AdamConfig(), GROUP)
    train(model, optimizer, range(1))
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    optimizer.load(saved)
    train(model, optimizer, range(1))

    assert saved["0.bias.step"].item() == 1


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("other.weight.exp_avg", (4, 3), "other.weight"), ("0.weight.exp_avg", (3, 4), r"\(3, 4\)")],
)
def test_state_of_another_model_is_refused(name, shape, message):
    optimizer = make_optimizer(make_model().named_parameters(), AdamConfig(), GROUP)

    with pytest.raises(CheckpointError, match=message):
        optimizer.load({name: torch.zeros(shape)})


@pytest.mark.parametrize(("max_norm", "expected"), [(0.0, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_gradients_are_clipped_to_the_norm(max_norm, expected):
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3)]
    parameters[0].grad = torch.tensor([3.0], dtype=torch.float64)
    parameters[1].grad = torch.tensor([-4.0], dtype=torch.float64)

    norm = clip_gradients(parameters, max_norm)

    assert norm is None if max_norm == 0 else norm.item() == pytest.approx(5.0)
    assert [p.grad.item() for p in parameters[:2]] == pytest.approx([0.6 * expected, -0.8 * expected], rel=1e-6)
    assert parameters[2].grad is None
