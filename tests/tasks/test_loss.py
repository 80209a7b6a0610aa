"""The energy loss against the numbers that DeePMD-kit 3.2.0 (PyTorch) gives for the same tensors and options."""

from __future__ import annotations

import itertools
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config.loss import EnergyLossConfig
from lockstep.tasks.energy.loss import EnergyLoss

START_LR = 1e-3
NAN = math.nan
ALL = ("energy", "force", "virial", "atom_ener", "atom_pref")

E_F = {"start_pref_e": 0.02, "limit_pref_e": 1.0, "start_pref_f": 1000.0, "limit_pref_f": 1.0}
VIRIAL = {"start_pref_v": 0.5, "limit_pref_v": 2.0}
ATOM = {"start_pref_ae": 0.1, "limit_pref_ae": 3.0}
PREF = {"start_pref_pf": 4.0, "limit_pref_pf": 0.5}

# options, learning rate, labels present, padding atoms of the two frames, loss, columns
DEEPMD_KIT = [
    pytest.param(
        E_F,
        0.001,
        ALL,
        None,
        1345.0169823515982,
        {"rmse": 36.67447317074368, "rmse_e": 0.1524399138612659, "rmse_f": 1.1597478705811066},
        id="default",
    ),
    pytest.param(
        E_F,
        2.5e-05,
        ALL,
        None,
        35.02744222064275,
        {"rmse": 5.91839861961348, "rmse_e": 0.1524399138612659, "rmse_f": 1.1597478705811066},
        id="later",
    ),
    pytest.param(
        E_F | VIRIAL | ATOM | PREF,
        0.0004,
        ALL,
        None,
        551.6080779171718,
        {
            "rmse": 23.48633811212748,
            "rmse_ae": 2.3044871909624978,
            "rmse_e": 0.1524399138612659,
            "rmse_f": 1.1597478705811066,
            "rmse_pf": 0.845017166402495,
            "rmse_v": 0.5362211734778897,
        },
        id="all terms",
    ),
    pytest.param(
        E_F | VIRIAL | ATOM | PREF,
        0.0004,
        ("energy", "force"),
        None,
        538.8695730402411,
        {
            "rmse": 23.213564419111535,
            "rmse_ae": NAN,
            "rmse_e": 0.1524399138612659,
            "rmse_f": 1.1597478705811066,
            "rmse_pf": NAN,
            "rmse_v": NAN,
        },
        id="no virial label",
    ),
    pytest.param(E_F, 0.0004, (), None, 0.0, {"rmse": 0.0, "rmse_e": NAN, "rmse_f": NAN}, id="no labels"),
    pytest.param(
        E_F | VIRIAL | ATOM | PREF,
        0.0004,
        ALL,
        (1, 2),
        551.4029066289261,
        {
            "rmse": 23.48196982003269,
            "rmse_ae": 2.2637725099808668,
            "rmse_e": 0.2993241200122885,
            "rmse_f": 1.159131545763899,
            "rmse_pf": 0.7920445285424189,
            "rmse_v": 0.8245955815035806,
        },
        id="padded",
    ),
    pytest.param(
        E_F | VIRIAL | {"intensive_ener_virial": True},
        0.0004,
        ALL,
        (1, 2),
        539.2469424572059,
        {
            "rmse": 23.221691205793043,
            "rmse_e": 0.2993241200122885,
            "rmse_f": 1.159131545763899,
            "rmse_v": 0.8245955815035806,
        },
        id="intensive",
    ),
    pytest.param(
        E_F | PREF | {"relative_f": 0.3},
        0.0004,
        ALL,
        (1, 0),
        198.3192914278895,
        {
            "rmse": 14.082588236112334,
            "rmse_e": 0.156245961624218,
            "rmse_f": 0.7024942071778985,
            "rmse_pf": 0.5458980630662149,
        },
        id="relative",
    ),
    pytest.param(
        E_F | VIRIAL | ATOM | {"use_huber": True, "huber_delta": 0.4},
        0.0004,
        ALL,
        (1, 2),
        115.84368237483226,
        {
            "rmse": 10.763070304278061,
            "rmse_ae": 2.2637725099808668,
            "rmse_e": 0.2993241200122885,
            "rmse_f": 1.159131545763899,
            "rmse_v": 0.8245955815035806,
        },
        id="huber",
    ),
    pytest.param(
        E_F | VIRIAL | ATOM | {"use_huber": True, "huber_delta": [0.2, 0.5, 1.5]},
        0.0004,
        ALL,
        None,
        136.20694379757174,
        {
            "rmse": 11.67077305912388,
            "rmse_ae": 2.3044871909624978,
            "rmse_e": 0.1524399138612659,
            "rmse_f": 1.1597478705811066,
            "rmse_v": 0.5362211734778897,
        },
        id="huber three",
    ),
    pytest.param(
        E_F | VIRIAL | {"use_huber": True, "huber_delta": 0.9, "f_use_norm": True},
        0.0004,
        ALL,
        (1, 2),
        492.72961307212717,
        {
            "rmse": 22.197513668700086,
            "rmse_e": 0.2993241200122885,
            "rmse_f": 1.159131545763899,
            "rmse_v": 0.8245955815035806,
        },
        id="huber norm",
    ),
    pytest.param(
        E_F | VIRIAL | ATOM | PREF | {"loss_func": "mae"},
        0.0004,
        ALL,
        (1, 2),
        360.9546488958306,
        {
            "mae_ae": 2.065693173959376,
            "mae_e": 0.245101072328277,
            "mae_f": 0.886793604512583,
            "mae_pf": 0.4060414404673527,
            "mae_v": 0.7026823565292774,
            "rmse": 18.998806512405736,
        },
        id="mae",
    ),
    pytest.param(
        E_F | VIRIAL | {"loss_func": "mae", "f_use_norm": True},
        0.0004,
        ALL,
        None,
        724.6527651011789,
        {
            "mae_e": 0.1317112955908861,
            "mae_f": 1.807182598897442,
            "mae_v": 0.43952536796023456,
            "rmse": 26.91937527323357,
        },
        id="mae norm",
    ),
    pytest.param(
        E_F | VIRIAL | {"loss_func": "mae", "use_huber": True},
        0.0004,
        ALL,
        None,
        357.722710752487,
        {
            "mae_e": 0.1317112955908861,
            "mae_f": 0.8912313898392995,
            "mae_v": 0.43952536796023456,
            "rmse": 18.913558912919772,
        },
        id="mae huber",
    ),
    pytest.param(
        E_F | PREF | {"use_default_pf": True},
        0.0004,
        ("energy", "force"),
        None,
        541.4251017745441,
        {
            "rmse": 23.268543181182274,
            "rmse_e": 0.1524399138612659,
            "rmse_f": 1.1597478705811066,
            "rmse_pf": 1.1597478705811066,
        },
        id="default pf",
    ),
    pytest.param(
        E_F | {"start_pref_v": 1.0, "limit_pref_v": 0.0},
        0.0004,
        ALL,
        None,
        538.8695730402411,
        {"rmse": 23.213564419111535, "rmse_e": 0.1524399138612659, "rmse_f": 1.1597478705811066},
        id="half off",
    ),
]


def draw(seed, frames, atoms, padding=None):
    """A prediction, labels and the mask of real atoms."""
    generator = np.random.default_rng(seed)

    def normal(*shape):
        return torch.tensor(generator.normal(size=shape))

    prediction = SimpleNamespace(
        energy=normal(frames) * 3,
        force=normal(frames, atoms, 3),
        virial=normal(frames, 3, 3) * 2,
        atom_energy=normal(frames, atoms),
    )
    labels = {
        "energy": normal(frames) * 3,
        "force": normal(frames, atoms, 3),
        "virial": normal(frames, 3, 3) * 2,
        "atom_ener": normal(frames, atoms),
        "atom_pref": normal(frames, atoms).abs(),
    }
    real = torch.ones(frames, atoms, dtype=torch.bool)
    for frame, number in enumerate(padding or ()):
        real[frame, atoms - number :] = False
    return prediction, labels, real


def part(prediction, labels, real, frames):
    return (
        SimpleNamespace(**{name: value[frames] for name, value in vars(prediction).items()}),
        {name: value[frames] for name, value in labels.items()},
        real[frames],
    )


@pytest.mark.parametrize(("options", "lr", "present", "padding", "total", "columns"), DEEPMD_KIT)
def test_loss_and_columns_are_those_of_deepmd_kit(options, lr, present, padding, total, columns):
    prediction, labels, real = draw(7, 2, 4, padding)
    labels = {name: labels[name] for name in present}

    loss = EnergyLoss(EnergyLossConfig(**options), START_LR)
    terms = loss(prediction, labels, lr, real)

    assert terms.total.item() == pytest.approx(total, rel=1e-13)
    assert terms.metrics.shown() == pytest.approx(columns, rel=1e-13, nan_ok=True)
    assert sorted(column.name for column in loss.columns) == list(columns)


def test_without_a_mask_all_atoms_are_real():
    prediction, labels, real = draw(7, 2, 4)
    loss = EnergyLoss(EnergyLossConfig(**E_F, **VIRIAL, **ATOM, **PREF), START_LR)

    with_mask, without = (loss(prediction, labels, 1e-4, mask) for mask in (real, None))

    assert with_mask.total == without.total
    assert torch.equal(with_mask.metrics.values, without.metrics.values)


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    mae=st.booleans(),
    padded=st.booleans(),
)
def test_errors_of_micro_batches_add_up_to_those_of_all_frames(seed, sizes, mae, padded):
    frames = sum(sizes)
    padding = [(seed + frame) % 3 for frame in range(frames)] if padded else None
    batch = draw(seed, frames, 5, padding)
    config = EnergyLossConfig(**E_F, **VIRIAL, **ATOM, **PREF, loss_func="mae" if mae else "mse")
    loss = EnergyLoss(config, START_LR)
    ends = np.cumsum([0, *sizes])
    parts = [slice(first, last) for first, last in itertools.pairwise(ends)]

    whole = loss(batch[0], batch[1], 1e-4, batch[2]).metrics.shown()
    pieces = [part(*batch, frames) for frames in parts]
    together = sum_of(loss(prediction, labels, 1e-4, real).metrics for prediction, labels, real in pieces).shown()

    del whole["rmse"], together["rmse"]
    assert together == pytest.approx(whole, rel=1e-12)


def sum_of(metrics):
    total, *rest = metrics
    for one in rest:
        total = total + one
    return total


def test_the_total_of_several_micro_batches_is_the_mean_of_their_losses():
    loss = EnergyLoss(EnergyLossConfig(), START_LR)
    terms = [loss(*draw(seed, 2, 3)[:2], 1e-4) for seed in (1, 2, 3)]

    together = sum_of(term.metrics for term in terms).shown()

    assert together["rmse"] ** 2 == pytest.approx(sum(term.total.item() for term in terms) / 3)


def test_systems_without_a_label_do_not_disturb_the_error_of_those_with_it():
    loss = EnergyLoss(EnergyLossConfig(**E_F, **VIRIAL), START_LR)
    prediction, labels, _ = draw(1, 2, 3)
    with_virial = loss(prediction, labels, 1e-4).metrics
    without = loss(prediction, {name: labels[name] for name in ("energy", "force")}, 1e-4).metrics

    assert (with_virial + without).shown()["rmse_v"] == pytest.approx(with_virial.shown()["rmse_v"])


def test_padding_atoms_change_nothing():
    prediction, labels, real = draw(3, 2, 6, padding=(2, 2))
    loss = EnergyLoss(EnergyLossConfig(**E_F, **VIRIAL, **ATOM, **PREF), START_LR)
    padded = loss(prediction, labels, 1e-4, real)
    atomic = {"force", "atom_energy", "atom_ener", "atom_pref"}
    cut = {name: value[:, :4] if name in atomic else value for name, value in vars(prediction).items()}
    cut_labels = {name: value[:, :4] if name in atomic else value for name, value in labels.items()}

    unpadded = loss(SimpleNamespace(**cut), cut_labels, 1e-4)

    assert padded.total.item() == pytest.approx(unpadded.total.item(), rel=1e-13)
    assert padded.metrics.shown() == pytest.approx(unpadded.metrics.shown(), rel=1e-13)


def test_a_frame_of_nothing_but_padding_leaves_the_loss_finite():
    prediction, labels, real = draw(3, 2, 4, padding=(4, 0))

    terms = EnergyLoss(EnergyLossConfig(**E_F, **VIRIAL, **ATOM), START_LR)(prediction, labels, 1e-4, real)

    assert math.isfinite(terms.total.item())


@pytest.mark.parametrize(
    "options", [{}, {"use_huber": True, "f_use_norm": True}, {"loss_func": "mae", "f_use_norm": True}]
)
def test_the_gradient_is_the_derivative_of_the_total(options):
    prediction, labels, real = draw(5, 2, 3, padding=(1, 0))
    loss = EnergyLoss(EnergyLossConfig(**E_F, **VIRIAL, **ATOM, **options), START_LR)

    def total(energy, force, virial, atom_energy):
        answer = SimpleNamespace(energy=energy, force=force, virial=virial, atom_energy=atom_energy)
        return loss(answer, labels, 1e-4, real).total

    inputs = [getattr(prediction, name) for name in ("energy", "force", "virial", "atom_energy")]
    assert torch.autograd.gradcheck(total, [value.clone().requires_grad_() for value in inputs])


def test_the_metrics_carry_no_graph():
    prediction, labels, _ = draw(5, 2, 3)
    prediction.force.requires_grad_()

    terms = EnergyLoss(EnergyLossConfig(), START_LR)(prediction, labels, 1e-4)

    assert terms.total.requires_grad
    assert not terms.metrics.values.requires_grad


def test_float32_predictions_are_judged_in_float64():
    prediction, labels, _ = draw(5, 2, 3)
    prediction.force = prediction.force.float()

    terms = EnergyLoss(EnergyLossConfig(), START_LR)(prediction, labels, 1e-4)

    assert terms.total.dtype == terms.metrics.values.dtype == torch.float64


def test_a_prefactor_with_one_end_at_zero_is_reported(caplog):
    with caplog.at_level(logging.WARNING):
        loss = EnergyLoss(EnergyLossConfig(**E_F, start_pref_v=1.0), START_LR)

    assert [column.name for column in loss.columns] == ["rmse", "rmse_e", "rmse_f"]
    assert "loss.limit_pref_v = 0: the virial is left out" in caplog.text
