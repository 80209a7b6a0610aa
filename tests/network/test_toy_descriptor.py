"""The recipe of docs/architecture.md, followed: a descriptor of one's own, in the tables, trained like the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from lockstep.checkpoint.find import load_checkpoint
from lockstep.config.descriptors import DESCRIPTORS as SECTIONS
from lockstep.config.descriptors import MEMBERS, OneCutoff
from lockstep.config.input import rebuild_sections, register_descriptor
from lockstep.geometry import Columns, Moments, View
from lockstep.interop.loading import load_potential
from lockstep.network.contraction import AsItIs
from lockstep.network.descriptors import DESCRIPTORS, Embedding
from lockstep.network.descriptors.sums import Coefficients, SlotSum, by_centre_type
from lockstep.network.mlp import embedding_net
from lockstep.network.precision import torch_dtype
from runs import TINY, dp, tiny_input, tiny_system, write_input


class ToyConfig(OneCutoff):
    """A learned coordination number: the sum of one net over all neighbours, whatever their type."""

    type: Literal["toy"] = "toy"
    """The descriptor: a learned coordination number."""


class Toy(SlotSum):
    """X = mean over slots of N(radial)."""

    def __init__(self, config: ToyConfig, type_map: Sequence[str], generator: torch.Generator) -> None:
        super().__init__()
        (cutoff,) = config.cutoffs(len(type_map))
        self.width, self.norm, self.dtype = config.neuron[-1], cutoff.n_slots, torch_dtype(config.precision)
        self.views = (View(dtype=self.dtype, columns=Columns.ONE, angular=False),)
        self.contraction = AsItIs(1, self.width)
        self.net = embedding_net(config.neuron, config.activation_function, config.resnet_dt, self.dtype, generator)

    def embedding(self, view: int, centre_type: int, neighbour_type: int) -> Embedding:
        return Embedding(self.net)

    def embeddings(self, cutoff: int, centre_type: int, types: Sequence[int]) -> Iterator[Embedding]:
        yield Embedding(self.net)

    def coefficients(self, view: int, features: Moments) -> Coefficients:
        nodes = features.node_radial
        value = self.net.value(nodes.reshape(-1, 1)).view(*nodes.shape, self.width)
        fit = features.fit
        return by_centre_type(features, (fit @ value / self.norm).to(self.dtype))


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_descriptor(ToyConfig)
    DESCRIPTORS["toy"] = Toy
    yield
    for table in (DESCRIPTORS, SECTIONS, MEMBERS):
        del table["toy"]
    rebuild_sections()


TOY = {"type": "toy", "sel": "auto", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 6], "seed": 1}


@pytest.mark.parametrize("spectral", ["auto", "off"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["alone", "in a hybrid"])
def test_a_descriptor_of_ones_own_trains(
    hybrid: bool, spectral: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = {**TOY, "spectral": spectral}
    descriptor = {"type": "hybrid", "list": [TINY["model"]["descriptor"], toy]} if hybrid else toy
    tiny_system(tmp_path / "train", n_frames=6)
    write_input(tmp_path, tiny_input(model__descriptor=descriptor))
    monkeypatch.chdir(tmp_path)
    assert dp("train", "input.json") == 0
    assert load_checkpoint("model.ckpt").step == 12
    before, after = (np.loadtxt("lcurve.out")[row] for row in (0, -1))
    assert np.isfinite(after).all()
    assert not np.array_equal(before[1:-1], after[1:-1])
    check_forces(tmp_path)


def check_forces(folder: Path) -> None:
    """Forces of the trained model by finite differences of its energy."""
    potential = load_potential(folder / "model.ckpt")
    coord, cell = (np.load(folder / "train" / "set.000" / f"{name}.npy")[:1] for name in ("coord", "box"))
    coord, cell = coord.reshape(1, -1, 3).astype(np.float64), cell.reshape(1, 3, 3).astype(np.float64)
    types = np.loadtxt(folder / "train" / "type.raw", dtype=np.int64)[None]
    force = potential.evaluate(coord, cell, types).force
    step = 1e-4
    for atom, axis in ((0, 0), (1, 2)):
        energies = []
        for sign in (1, -1):
            moved = coord.copy()
            moved[0, atom, axis] += sign * step
            energies.append(float(potential.evaluate(moved, cell, types).energy))
        assert float(force[0, atom, axis]) == pytest.approx(-(energies[0] - energies[1]) / (2 * step), abs=1e-6)
    assert force.abs().max() > 1e-6
