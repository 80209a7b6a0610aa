"""Every kind of descriptor, trained on two ranks: the steps of one rank that accumulates two micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copper import TINY, curve, largest_difference, train_on_threads, weights, write_copper

PLAIN: dict[str, Any] = TINY["model"]["descriptor"]
ATTEN = {"rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3, "attn_layer": 0, "tebd_dim": 3, "seed": 1}
DESCRIPTORS: dict[str, dict[str, Any]] = {
    "se_e2_r": {"type": "se_e2_r", "rcut": 4.0, "neuron": [4, 8], "seed": 1},
    "se_atten": {**ATTEN, "type": "se_atten", "use_econf_tebd": True},
    "se_atten_v2": {**ATTEN, "type": "se_atten_v2"},
    "hybrid": {"type": "hybrid", "list": [PLAIN, {**ATTEN, "type": "dpa1", "rcut": 3.0}]},
}


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_two_ranks_do_what_one_does_that_accumulates_two(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_WORKERS", "1")
    for folder, ranks, accumulate in (("one", 1, 2), ("two", 2, 1)):
        file = write_copper(
            tmp_path / folder,
            model__descriptor=DESCRIPTORS[name],
            learning_rate__scale_by_worker="none",
            training__acc_freq=accumulate,
        )
        monkeypatch.chdir(tmp_path / folder)
        train_on_threads(file, ranks)
    assert largest_difference(weights(tmp_path / "two"), weights(tmp_path / "one")) < 1e-10
    assert np.isfinite(curve(tmp_path / "one")).all()
