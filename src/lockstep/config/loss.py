"""The `loss` section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from lockstep.config import unsupported
from lockstep.config.section import Finding, Flag, NonNegative, Section, is_positive, wrong


def _one_or_three(value: Any) -> Any:
    numbers = value if isinstance(value, list | tuple) else [value]
    if not all(map(is_positive, numbers)) or (numbers is value and len(numbers) != 3):
        raise wrong("expected one positive number, or three for [energy, force, virial]")
    return tuple(map(float, numbers)) if numbers is value else float(value)


class EnergyLossConfig(Section):
    """Weighted errors of energies, forces, virials; each weight goes from `start_pref` to `limit_pref`."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.LOSS

    type: Literal["ener"] = "ener"
    """The loss: energies and their derivatives."""
    start_pref_e: NonNegative = 0.02
    """Weight of the energy error at the start of training."""
    limit_pref_e: NonNegative = 1.0
    """Weight of the energy error when the learning rate has gone to zero."""
    start_pref_f: NonNegative = 1000.0
    """Weight of the force error at the start of training."""
    limit_pref_f: NonNegative = 1.0
    """Weight of the force error when the learning rate has gone to zero."""
    start_pref_v: NonNegative = 0.0
    """Weight of the virial error at the start of training."""
    limit_pref_v: NonNegative = 0.0
    """Weight of the virial error when the learning rate has gone to zero."""
    start_pref_ae: NonNegative = 0.0
    """Weight of the atomic-energy error at the start of training."""
    limit_pref_ae: NonNegative = 0.0
    """Weight of the atomic-energy error when the learning rate has gone to zero."""
    start_pref_pf: NonNegative = 0.0
    """Weight of the force error with a prefactor per atom, at the start of training."""
    limit_pref_pf: NonNegative = 0.0
    """Weight of the force error with a prefactor per atom, when the learning rate has gone to zero."""
    use_default_pf: Flag = False
    """Take 1 as the prefactor of every atom of a system without `atom_pref.npy`."""
    relative_f: NonNegative | None = None
    """Divide each force error by the size of the labelled force plus this number."""
    use_huber: Flag = False
    """Use the Huber loss, which is quadratic for small and linear for large errors."""
    huber_delta: Annotated[float | tuple[float, float, float], BeforeValidator(_one_or_three)] = 0.01
    """Error at which the Huber loss turns linear: one number, or three for [energy, force, virial]."""
    loss_func: Literal["mse", "mae"] = "mse"
    """Mean squared or mean absolute error."""
    f_use_norm: Flag = False
    """Measure a force error by the length of its vector, not by component; for `mae` and the Huber loss."""
    intensive_ener_virial: Flag = False
    """Divide squared energy and virial errors by the square of the number of atoms instead of the number."""

    @property
    def huber_deltas(self) -> tuple[float, float, float]:
        """The Huber thresholds of energy, force and virial."""
        delta = self.huber_delta
        return delta if isinstance(delta, tuple) else (delta, delta, delta)

    def findings(self) -> Iterator[Finding]:
        """Yield options that cannot be combined, and a loss without any term."""
        if self.f_use_norm and not (self.use_huber or self.loss_func == "mae"):
            yield Finding("f_use_norm", "needs loss_func = 'mae' or use_huber = true")
        if self.use_huber and self.relative_f is not None:
            yield Finding("relative_f", "cannot be combined with use_huber", "remove one of them")
        if self.use_huber and (self.start_pref_pf or self.limit_pref_pf):
            yield Finding("start_pref_pf", "cannot be combined with use_huber", "remove one of them")
        weights = [getattr(self, f"{end}_pref_{x}") for end in ("start", "limit") for x in ("e", "f", "v", "ae", "pf")]
        if not any(weights):
            remedy = "give start_pref_f and limit_pref_f, for example"
            yield Finding("", "all prefactors are zero, so there is nothing to train for", remedy)


LossConfig = EnergyLossConfig
