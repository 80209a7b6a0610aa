"""The running average of the weights: what it is, that it is saved, and that a model can be made of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.interop.loading import load_potential
from runs import dp, tiny_input, tiny_system, write_input

DECAY = 0.25
"""What is left from step 4 on; before, a tenth of the steps is averaged over."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of six steps with a checkpoint at each."""
    monkeypatch.chdir(tmp_path)
    tiny_system(tmp_path / "train", n_frames=6)
    options = {"enable_ema": True, "ema_decay": DECAY, "numb_steps": 6, "save_freq": 1, "max_ckpt_keep": 10}
    write_input(tmp_path, tiny_input(**{f"training__{key}": value for key, value in options.items()}))
    assert dp("train", "input.json") == 0
    return tmp_path


def test_every_update_leaves_its_share(run: Path) -> None:
    checkpoints = [load_checkpoint(f"model.ckpt-{step}") for step in range(1, 7)]
    for before, after in itertools.pairwise(checkpoints):
        decay = min(DECAY, after.step / (after.step + 10))
        assert (decay < DECAY) == (after.step < 4)
        weights, average = after.group("model"), after.group("average")
        assert average.keys() <= weights.keys()
        assert "network.fitting.nets.0.layers.0.weight" in average
        for name, value in before.group("average").items():
            torch.testing.assert_close(average[name], decay * value + (1 - decay) * weights[name], rtol=1e-12, atol=0)


def test_a_model_is_made_of_it(run: Path) -> None:
    assert dp("freeze", "-o", "last") == dp("freeze", "--ema", "-o", "mean", "-l", "freeze.log") == 0
    assert "Model written to mean.dp, of the running average of the weights" in Path("freeze.log").read_text()
    potential = load_potential("model.ckpt-6")
    averages = load_checkpoint("model.ckpt-6").group("average")
    last, mean = (load_potential(name).state_dict() for name in ("last.dp", "mean.dp"))
    for name, value in potential.state_dict().items():
        torch.testing.assert_close(last[name], value, rtol=1e-14, atol=0)
        torch.testing.assert_close(mean[name], averages.get(name, value), rtol=1e-14, atol=0)


def test_a_run_without_it_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_input(run, tiny_input(training__numb_steps=2, training__save_ckpt="plain"))
    assert dp("train", "input.json") == 0
    assert dp("freeze", "-c", "plain", "--ema") == 2
    assert "has no running average of its weights" in capsys.readouterr().err
    assert dp("freeze", "-c", "plain", "--head", "water") == 2
    assert "--head = 'water': there is one model" in capsys.readouterr().err


def test_a_restart_without_it_says_so(run: Path) -> None:
    write_input(run, tiny_input(training__numb_steps=8))
    assert dp("train", "input.json", "--restart", "model.ckpt", "-l", "train.log") == 0
    assert "has an average of the weights: it ends here" in Path("train.log").read_text()


def test_a_restart_may_begin_with_it(run: Path) -> None:
    write_input(run, tiny_input(training__numb_steps=2, training__save_ckpt="plain"))
    assert dp("train", "input.json") == 0
    write_input(run, tiny_input(training__numb_steps=4, training__save_ckpt="plain", training__enable_ema=True))
    assert dp("train", "input.json", "--restart", "plain", "-l", "train.log") == 0
    assert "average of the weights: plain-2.safetensors has none" in Path("train.log").read_text()
    assert load_checkpoint("plain").group("average")
