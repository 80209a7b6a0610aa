"""Models go to the real DeePMD-kit and come from it, and both compute the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.config.descriptors import settled_sel
from lockstep.config.elements import ELEMENTS, spin_orbitals
from lockstep.interop.deepmd import load_dp, save_dp
from lockstep.model import Potential
from potentials import (
    ACTIVATIONS,
    CELLS,
    KINDS,
    VARIANTS,
    Frame,
    close,
    evaluate,
    random_frame,
    random_potential,
    stack,
    variant_potential,
    with_parameters,
)

REFERENCE = Path(__file__).parent / "reference"
REFERENCE_MODELS = sorted(path.stem for path in REFERENCE.glob("*.dp"))
GEOMETRIES = ("cubic", "triclinic", "nopbc")


@dataclass(frozen=True)
class Case:
    potential: Potential
    kind: str
    tolerance: float = 1e-12


def cases() -> dict[str, Case]:
    """Every variant in a triclinic cell smaller than twice the cutoff, the two kinds of embedding in every cell."""
    found = {name: Case(random_potential(v.descriptor, v.fitting), "triclinic") for name, v in VARIANTS.items()}
    for kind in CELLS:
        for one_side in (True, False):
            potential = random_potential({"type_one_side": one_side}, seed=5)
            found[f"{kind}-{'one' if one_side else 'two'}"] = Case(potential, kind)
    for activation in ACTIVATIONS:
        change = {"activation_function": activation}
        found[f"activation-{activation.replace(':', '_')}"] = Case(random_potential(change, change), "cubic")
    single = {"precision": "float32"}
    found["float32"] = Case(random_potential(single, single), "cubic", tolerance=2e-6)
    found["float32-fitting"] = Case(random_potential({}, single), "cubic", tolerance=2e-6)
    found["sel-too-small"] = Case(random_potential({"sel": [2, 20]}), "cubic")
    for name in KINDS:
        # DeePMD-kit's readers know `se_e2_r` with one net per neighbour type only.
        if name != "radial_two_side":
            potential = variant_potential(name)
            found |= {f"{name}-{kind}": Case(potential, kind) for kind in (*CELLS, *SPECIAL)}
    return found


SPECIAL = {
    "one_atom": Frame(np.zeros((1, 3)), None, np.array([1])),
    "far_apart": Frame(np.array([[0.0, 0, 0], [20, 0, 0], [0, 40, 0]]), None, np.array([1, 0, 1])),
    "small_cell": Frame(np.zeros((1, 3)), np.diag([2.6, 2.9, 2.7]), np.array([0])),
}
"""Empty environments, and an atom that sees itself many times over."""
CASES = cases()


@pytest.fixture(scope="module")
def answers(peer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of DeePMD-kit over all models, written here; it takes seconds to start."""
    folder = tmp_path_factory.mktemp("models")
    for name, case in CASES.items():
        save_dp(case.potential, folder / f"{name}.dp")
        columns = zip(("coord", "cell", "types", "fparam", "aparam"), stack(frames(case)), strict=True)
        np.savez(folder / f"{name}.npz", **{key: value for key, value in columns if value is not None})
    peer("peer_evaluate.py", folder)
    return folder


def frames(case: Case) -> list:
    if case.kind in SPECIAL:
        return [with_parameters(SPECIAL[case.kind], case.potential, np.random.default_rng(5))] * 2
    first = random_frame(case.kind, potential=case.potential)
    # DeePMD-kit takes one list of types for all frames.
    second = random_frame(case.kind, seed=1, potential=case.potential)
    return [first, type(first)(second.coord, second.cell, first.types, second.fparam, second.aparam)]


@pytest.mark.interop
@pytest.mark.parametrize("name", CASES)
def test_deepmd_kit_computes_our_energies_from_our_files(name: str, answers: Path) -> None:
    case = CASES[name]
    theirs = np.load(answers / f"{name}.answer.npz")
    ours = evaluate(case.potential, *frames(case))
    assert theirs["type_map"].tolist() == ["O", "H"]
    assert theirs["rcut"] == 4.0
    close(ours.energy, theirs["energy"], case.tolerance)
    close(ours.atom_energy, theirs["atom_energy"], case.tolerance)


@pytest.mark.interop
def test_electronic_configurations_are_those_of_deepmd_kit(peer) -> None:
    told = peer("peer_electrons.py").split()
    ours = [name + "".join("+" if taken > 0 else "-" for taken in spin_orbitals(name)) for name in ELEMENTS]
    assert ours == told


@pytest.fixture(scope="module")
def written_by_deepmd_kit(peer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    peer("make_reference.py", folder)
    return folder


def frames_of(numbers: dict[str, np.ndarray], geometry: str) -> dict[str, np.ndarray | None]:
    return {key: numbers.get(f"{geometry}_{key}") for key in ("coord", "cell", "types", "fparam", "aparam")}


@pytest.mark.interop
@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_files_fresh_from_deepmd_kit_give_its_energies(name: str, written_by_deepmd_kit: Path) -> None:
    potential = load_dp(written_by_deepmd_kit / f"{name}.dp")
    numbers = dict(np.load(written_by_deepmd_kit / f"{name}.npz"))
    tolerance = 2e-6 if name == "float32" else 1e-12
    for geometry in GEOMETRIES:
        found = potential.evaluate(**frames_of(numbers, geometry))
        close(found.energy, numbers[f"{geometry}_energy"], tolerance)
        close(found.atom_energy, numbers[f"{geometry}_atom_energy"], tolerance)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_stored_files_give_the_forces_and_virials_of_deepmd_kit(name: str, geometry: str) -> None:
    potential = load_dp(REFERENCE / f"{name}.dp")
    numbers = dict(np.load(REFERENCE / f"{name}.npz"))
    found = potential.evaluate(**frames_of(numbers, geometry))
    tolerance = 2e-5 if name == "float32" else 1e-10
    for key in ("energy", "atom_energy", "force", "virial"):
        close(getattr(found, key), numbers[f"{geometry}_{key}"], tolerance)


def test_the_stored_case_of_small_sel_drops_neighbours() -> None:
    """Otherwise it would compare nothing new."""
    potential = load_dp(REFERENCE / "sel_too_small.dp")
    numbers = np.load(REFERENCE / "sel_too_small.npz")
    ((pairs, _),) = potential.find_pairs(*(numbers[f"cubic_{key}"] for key in ("coord", "cell", "types")))
    assert pairs.dropped > 0


def test_float32_files_have_float32_weights() -> None:
    potential = load_dp(REFERENCE / "float32.dp")
    assert {weight.dtype for weight in potential.parameters()} == {torch.float32}


@pytest.mark.interop
def test_sel_by_counting_is_that_of_deepmd_kit(peer: Callable[..., str]) -> None:
    settings = ("auto", "auto:1.2", "auto:1.05", "auto:1")
    theirs = json.loads(peer("peer_sel.py", "600", *settings).splitlines()[-1])
    ours = [[settled_sel(setting, count) for count in range(1, 601)] for setting in settings]
    assert ours == theirs
