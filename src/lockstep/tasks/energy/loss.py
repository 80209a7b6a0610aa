"""The energy loss: what a step minimises, and the errors that the learning curve shows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.tasks.metrics import Column, LossTerms, Metrics

if TYPE_CHECKING:
    from lockstep.config.loss import EnergyLossConfig
    from lockstep.model.potential import Prediction

log = logging.getLogger(__name__)

Labels = Mapping[str, Tensor]

# How DeePMD-kit abbreviates the terms, in its option names (start_pref_e) and in its column names (rmse_e).
TERMS = {
    "e": "energy",
    "f": "force",
    "v": "virial",
    "ae": "atomic energy",
    "pf": "force with atomic prefactors",
}


_LABELS = {
    "e": ("energy",),
    "f": ("force",),
    "v": ("virial",),
    "ae": ("atom_ener",),
    "pf": ("force", "atom_pref"),
}


@dataclass(frozen=True)
class _Term:
    """One term before its prefactor: the value to minimise, and the error sum and count to display."""

    value: Tensor
    error: Tensor
    count: Tensor


class EnergyLoss:
    """DeePMD-kit's `ener` loss: a weighted sum of mean squared (or absolute, or Huber) errors.

    The weight of a term moves from start_pref to limit_pref as the learning rate falls from `start_lr` to 0.
    """

    def __init__(self, config: EnergyLossConfig, start_lr: float) -> None:
        self.config = config
        self.start_lr = start_lr
        self.prefactors = _active_prefactors(config)
        self.absolute = config.loss_func == "mae"
        energy, force, virial = config.huber_deltas
        self.huber_delta = {"e": energy, "f": force, "v": virial, "ae": energy}
        self.columns = (Column("rmse"), *map(self._column, self.prefactors))

    def _column(self, term: str) -> Column:
        return Column(f"mae_{term}", "mean") if self.absolute else Column(f"rmse_{term}")

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The labels that each active term needs to count."""
        labels = {**_LABELS, "pf": ("force",)} if self.config.use_default_pf else _LABELS
        return {term: labels[term] for term in self.prefactors}

    def weights(self, lr: float) -> dict[str, float]:
        """The prefactor of each active term at learning rate `lr`."""
        progress = lr / self.start_lr
        return {term: limit + (start - limit) * progress for term, (start, limit) in self.prefactors.items()}

    def __call__(self, prediction: Prediction, labels: Labels, lr: float, real: Tensor | None = None) -> LossTerms:
        """The loss of one micro-batch.

        Args:
            prediction: the model's answer.
            labels: what the system has of energy [B], force [B,n,3], virial [B,3,3], atom_ener [B,n],
                atom_pref [B,n]; a term without its label contributes nothing.
            lr: the learning rate of this step.
            real: [B,n], false for atoms that only pad a frame of a mixed-type system; they count nowhere.
        """
        mask = _mask(prediction, real)
        zero = mask.new_zeros(())
        total, errors, counts = zero, [], []
        for term, weight in self.weights(lr).items():
            found = _MAKERS[term](self, prediction, labels, mask)
            if found is not None:
                total = total + weight * found.value
            errors.append(zero if found is None else found.error.detach())
            counts.append(zero if found is None else found.count)
        ones = mask.new_ones(())
        values = torch.stack([total.detach(), *errors, ones, *counts])
        return LossTerms(total, Metrics(self.columns, values))

    def _energy(self, prediction: Prediction, labels: Labels, mask: Tensor) -> _Term | None:
        if "energy" not in labels:
            return None
        difference = labels["energy"].double() - prediction.energy.double()
        return self._extensive("e", difference.reshape(-1, 1), mask)

    def _virial(self, prediction: Prediction, labels: Labels, mask: Tensor) -> _Term | None:
        if "virial" not in labels:
            return None
        difference = labels["virial"].double() - prediction.virial.double()
        return self._extensive("v", difference.reshape(-1, 9), mask)

    def _extensive(self, term: str, difference: Tensor, mask: Tensor) -> _Term:
        """A quantity of the frame that grows with its atoms: displayed per atom, and minimised per atom or,
        as DeePMD-kit always did for squares, per square root of atoms."""
        # A frame of nothing but padding must not turn the whole batch into nan.
        atoms = mask.sum(-1, keepdim=True).clamp(min=1.0)
        per_atom = difference / atoms
        error = per_atom.abs() if self.absolute else per_atom.square()
        count = mask.new_full((), difference.numel())
        total = error.sum()
        if self.absolute:
            value = total / count
        elif self.config.use_huber:
            value = _huber(per_atom, self.huber_delta[term]).mean()
        elif self.config.intensive_ener_virial:
            value = total / count
        else:
            value = (error * atoms).mean()
        return _Term(value, total, count)

    def _force(self, prediction: Prediction, labels: Labels, mask: Tensor) -> _Term | None:
        if "force" not in labels:
            return None
        difference = self._force_difference(prediction, labels)
        if self.config.f_use_norm:
            norm = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
            term = self._atomic("f", norm, mask)
            # The norm is what is minimised; a root mean square is displayed per component as always.
            return term if self.absolute else replace(term, **_squares(difference, mask))
        return self._atomic("f", difference, mask)

    def _prefactor_force(self, prediction: Prediction, labels: Labels, mask: Tensor) -> _Term | None:
        if "force" not in labels or not ("atom_pref" in labels or self.config.use_default_pf):
            return None
        difference = self._force_difference(prediction, labels)
        prefactor = labels.get("atom_pref", mask).double()
        return self._atomic("pf", difference, mask, prefactor)

    def _force_difference(self, prediction: Prediction, labels: Labels) -> Tensor:
        label = labels["force"].double()
        difference = label - prediction.force.double()
        if self.config.relative_f is None:
            return difference
        return difference / (torch.linalg.vector_norm(label, dim=-1, keepdim=True) + self.config.relative_f)

    def _atom_energy(self, prediction: Prediction, labels: Labels, mask: Tensor) -> _Term | None:
        if "atom_ener" not in labels:
            return None
        difference = labels["atom_ener"].double() - prediction.atom_energy.double()
        return self._atomic("ae", difference[..., None], mask)

    def _atomic(self, term: str, difference: Tensor, mask: Tensor, weight: Tensor | None = None) -> _Term:
        """A quantity of the atom, [B, n, components]: the mean over all real atoms of the micro-batch."""
        kept = (mask if weight is None else mask * weight)[..., None]
        count = mask.sum() * difference.shape[-1]
        total = ((difference.abs() if self.absolute else difference.square()) * kept).sum()
        minimised = total
        if self.config.use_huber and not self.absolute:
            minimised = (_huber(difference, self.huber_delta[term]) * kept).sum()
        return _Term(minimised / count.clamp(min=1.0), total, count)


_MAKERS = {
    "e": EnergyLoss._energy,
    "f": EnergyLoss._force,
    "v": EnergyLoss._virial,
    "ae": EnergyLoss._atom_energy,
    "pf": EnergyLoss._prefactor_force,
}


def _active_prefactors(config: EnergyLossConfig) -> dict[str, tuple[float, float]]:
    """(start, limit) of the terms that take part: as in DeePMD-kit, those with both ends above zero."""
    active = {}
    for term, name in TERMS.items():
        start, limit = getattr(config, f"start_pref_{term}"), getattr(config, f"limit_pref_{term}")
        if start != 0 and limit != 0:
            active[term] = (float(start), float(limit))
        elif start != 0 or limit != 0:
            log.warning(
                "loss.start_pref_%s = %g, loss.limit_pref_%s = %g: the %s is left out of the loss, because a"
                " term takes part only when both are above zero (give a tiny value to keep it in)",
                *(term, start, term, limit, name),
            )
    return active


def _mask(prediction: Prediction, real: Tensor | None) -> Tensor:
    if real is None:
        return torch.ones_like(prediction.atom_energy, dtype=torch.float64, requires_grad=False)
    return real.double()


def _squares(difference: Tensor, mask: Tensor) -> dict[str, Tensor]:
    total = (difference.square() * mask[..., None]).sum()
    return {"error": total, "count": mask.sum() * difference.shape[-1]}


def _huber(residual: Tensor, delta: float) -> Tensor:
    """Half the square up to `delta`, then the tangent line."""
    size = residual.abs()
    return torch.where(size <= delta, 0.5 * residual.square(), delta * (size - 0.5 * delta))
