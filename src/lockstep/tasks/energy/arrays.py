"""What the energy task wants from the files: labels of the loss, and the parameters that the model asks for."""

from __future__ import annotations

from lockstep.config.model import EnergyFittingConfig
from lockstep.data import Array

LABELS = (
    Array("energy"),
    Array("force", tail=(3,), atomic=True),
    Array("virial", tail=(3, 3)),
    Array("atom_ener", ("atom_ener.npy", "atomic_ener.npy"), atomic=True),
    Array(
        "atom_pref",
        ("atom_pref.npy", "atomic_pref.npy"),
        atomic=True,
        hint=" (one prefactor an atom, not one a component)",
    ),
)


def energy_arrays(fitting: EnergyFittingConfig) -> tuple[Array, ...]:
    """Labels, where systems have them, and parameters; those of a model that has none are not read at all."""
    return (*LABELS, *parameter_arrays(fitting))


def parameter_arrays(fitting: EnergyFittingConfig) -> tuple[Array, ...]:
    """Frame and atomic parameters of the model, without which there is no prediction."""
    arrays = (
        Array("fparam", tail=(fitting.numb_fparam,), required=True, hint=_hint("fparam", fitting.numb_fparam)),
        Array(
            "aparam",
            tail=(fitting.numb_aparam,),
            atomic=True,
            required=True,
            hint=_hint("aparam", fitting.numb_aparam),
        ),
    )
    return tuple(array for array in arrays if array.tail[0] > 0)


def _hint(name: str, count: int) -> str:
    return f" with {count} parameters (model.fitting_net.numb_{name})"
