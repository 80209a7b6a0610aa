"""Ten steps here and ten steps of DeePMD-kit's own trainer, over the same frames, give the same losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import kit_input

from lockstep.config import parse_any_input
from lockstep.data import DataSet, make_plan
from lockstep.training.loop import Trainer
from runs import dp

STEPS = 10
TIGHT = 1e-10


def losses_here(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every step of `dp train`, at full precision."""
    losses: list[float] = []
    step = Trainer.step

    def recorded(self: Trainer, number: int) -> Any:
        metrics = step(self, number)
        losses.append(float(metrics.values[0]))
        return metrics

    monkeypatch.setattr(Trainer, "step", recorded)
    assert dp("train", "input.json") == 0
    return losses


def kit_trainer(data: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeePMD-kit's trainer, which draws its frames in this program's order."""
    from deepmd.pt.entrypoints.main import get_trainer
    from deepmd.pt.utils.dataloader import collate_batch
    from deepmd.utils.argcheck import normalize

    config = normalize({"optimizer": {"type": "Adam"}, **json.loads(json.dumps(data))})
    trainer = get_trainer(config)
    config_here = parse_any_input(data)
    plan = make_plan(DataSet("train", config_here.type_map), 1, auto_prob="prob_sys_size")
    stream = plan.stream(data["training"]["seed"])
    loaders = trainer.training_dataloader.dataset
    frames = (int(stream.at(m).frames[0]) for m in range(steps))
    batches = ({**collate_batch([loaders.systems[0][frame]]), "sid": 0} for frame in frames)
    trainer.training_data = batches
    monkeypatch.setattr("deepmd.pt.train.training.Trainer._close_lmdb_loaders", lambda self: None)
    return trainer


def losses_there(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every step of DeePMD-kit's trainer."""
    trainer = kit_trainer(data, STEPS, monkeypatch)
    losses: list[float] = []
    forward = trainer.wrapper.forward

    def recorded(*arguments: Any, **options: Any) -> Any:
        found = forward(*arguments, **options)
        losses.append(float(found[1]))
        return found

    monkeypatch.setattr(trainer.wrapper, "forward", recorded)
    trainer.run()
    return losses


@pytest.mark.parametrize("name", ["se_e3", "dpa1", "dpa2", "dpa3", "spin", "dipole"])
def test_same_losses_as_deepmd_kits_own_trainer(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"training__numb_steps": STEPS, "training__disp_freq": 100, "training__save_freq": 100}
    data = kit_input(name, folder, **changes)
    data["learning_rate"] = {"type": "exp", "start_lr": 0.001, "stop_lr": 1e-4, "decay_steps": 5}
    (folder / "input.json").write_text(json.dumps(data))
    here = losses_here(monkeypatch)
    (folder / "there").mkdir()
    monkeypatch.chdir(folder / "there")
    (folder / "there" / "train").symlink_to(folder / "train")
    there = losses_there(data, monkeypatch)
    assert len(here) == len(there) == STEPS
    np.testing.assert_allclose(here, there, rtol=TIGHT, atol=TIGHT)
    assert here[-1] != here[0]
