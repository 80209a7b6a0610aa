"""What a system holds per frame: one table, so that no other module spells out a file name or a shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Array:
    """One per-frame array of a system.

    Attributes:
        name: its name in a micro-batch.
        files: the file names it may have, preferred one first.
        tail: its shape behind [frames] (or behind [frames, atoms] where it is per atom).
        per_atom: whether every atom has its own values.
    """

    name: str
    files: tuple[str, ...]
    tail: tuple[int, ...]
    per_atom: bool = False

    def shape(self, natoms: int) -> tuple[int, ...]:
        """Shape of one frame."""
        return (natoms, *self.tail) if self.per_atom else self.tail

    def width(self, natoms: int) -> int:
        """Numbers in one frame."""
        width = natoms if self.per_atom else 1
        for extent in self.tail:
            width *= extent
        return width


COORD = Array("coord", ("coord.npy",), (3,), per_atom=True)
BOX = Array("box", ("box.npy",), (3, 3))
REAL_TYPES = Array("real_atom_types", ("real_atom_types.npy",), (), per_atom=True)

_FIXED_LABELS = (
    Array("energy", ("energy.npy",), ()),
    Array("force", ("force.npy",), (3,), per_atom=True),
    Array("virial", ("virial.npy",), (3, 3)),
    Array("atom_ener", ("atom_ener.npy", "atomic_ener.npy"), (), per_atom=True),
    Array("atom_pref", ("atom_pref.npy", "atomic_pref.npy"), (), per_atom=True),
)

LABEL_NAMES = (*(label.name for label in _FIXED_LABELS), "fparam", "aparam")


def label_table(numb_fparam: int = 0, numb_aparam: int = 0) -> tuple[Array, ...]:
    """The labels a model can ask for; parameters of a model that has none are not read at all."""
    parameters = []
    if numb_fparam > 0:
        parameters.append(Array("fparam", ("fparam.npy",), (numb_fparam,)))
    if numb_aparam > 0:
        parameters.append(Array("aparam", ("aparam.npy",), (numb_aparam,), per_atom=True))
    return (*_FIXED_LABELS, *parameters)
