"""Frames that are too large for the memory of one pass: worked through in slices, to the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copper import curve, largest_difference, train_on_threads, weights, write_copper

from lockstep.model.potential import Potential
from potentials import KINDS, VARIANTS, evaluate, random_frame, random_potential

LABELS = {"loss__start_pref_v": 0.1, "loss__limit_pref_v": 1.0, "learning_rate__scale_by_worker": "none"}
FEW = 3
"""Centres at once."""


def allow_few_centres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Potential, "_centres_at_once", lambda self: (FEW, FEW))


def train_once(folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, **changes: Any) -> Path:
    file = write_copper(folder, **LABELS, **changes)
    monkeypatch.chdir(folder)
    train_on_threads(file, ranks)
    return folder


@pytest.mark.parametrize("spectral", ["auto", "off"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_in_slices_is_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spectral: str, ranks: int
) -> None:
    changes = {"model__descriptor__spectral": spectral, "training__ranks_per_frame": ranks}
    whole = train_once(tmp_path / "whole", monkeypatch, ranks, **changes)
    allow_few_centres(monkeypatch)
    sliced = train_once(tmp_path / "sliced", monkeypatch, ranks, **changes)
    assert 0 < largest_difference(weights(whole), weights(sliced)) < 1e-10
    assert (curve(whole) == curve(sliced)).all()


@pytest.mark.parametrize("name", ["one_side", "exclude", "parameters", "radial", "concat", "concat_dropping"])
def test_predictions_in_slices_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = (VARIANTS | KINDS)[name]
    potential = random_potential(variant.descriptor, variant.fitting)
    frames = [random_frame(n=8, seed=seed, potential=potential) for seed in (1, 2)]
    whole = evaluate(potential, *frames)
    allow_few_centres(monkeypatch)
    sliced = evaluate(potential, *frames)
    for field in ("energy", "atom_energy", "force", "virial"):
        np.testing.assert_allclose(getattr(sliced, field), getattr(whole, field), rtol=1e-11, atol=1e-12)


def test_memory_decides_how_many_centres_there_are_at_once() -> None:
    small, large = random_potential(), random_potential({"neuron": [25, 50, 100], "sel": [46, 92]})
    for potential in (small, large):
        exact, expanded = potential._centres_at_once()
        assert 0 < exact < expanded
    assert large._centres_at_once()[0] < small._centres_at_once()[0]
