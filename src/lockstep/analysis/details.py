"""Labels beside predictions, number by number, in DeePMD-kit's detail files."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from lockstep.analysis.evaluation import Answer, real_atoms
from lockstep.data import MicroBatch
from lockstep.errors import UserError

_TENSOR = [a + b for a in "xyz" for b in "xyz"]


class DetailFiles:
    """Writes `prefix.e.out`, `prefix.f.out` and so on, frame by frame. A label that is not there is nan.

    A suffix of the prefix is replaced, and every system has a header before its rows, as DeePMD-kit does it.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = Path(prefix)
        self._files: dict[str, TextIO] = {}
        self._headers: dict[str, str] = {}
        # Opened before the work begins, so that a wrong path costs no waiting.
        self._open("e")

    def write(self, system: str, batch: MicroBatch, answer: Answer) -> None:
        """Add the frames of a batch."""
        natoms = real_atoms(batch).sum(axis=1)[:, None]
        energy = _beside(batch, "energy", answer.energy, 1)
        self._rows("e", f"{system}: data_e pred_e", energy)
        self._rows("e_peratom", f"{system}: data_e pred_e", energy / natoms)
        self._rows("f", f"{system}: {_columns('f', 'xyz')}", _beside(batch, "force", answer.force, 3))
        virial = _beside(batch, "virial", answer.virial, 9)
        self._rows("v", f"{system}: {_columns('v', _TENSOR)}", virial)
        self._rows("v_peratom", f"{system}: {_columns('v', _TENSOR)}", virial / natoms)
        if "virial" in batch.labels and batch.cell is not None:
            volume = np.abs(np.linalg.det(batch.cell))[:, None]
            self._rows("s", f"{system} (eV/Å³): {_columns('s', _TENSOR)}", -virial / volume)

    def __enter__(self) -> DetailFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def _open(self, name: str) -> TextIO:
        path = self._prefix.with_suffix(f".{name}.out")
        try:
            file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error
        self._files[name] = file
        return file

    def _rows(self, name: str, header: str, rows: NDArray) -> None:
        file = self._files.get(name) or self._open(name)
        try:
            np.savetxt(file, rows, header="" if self._headers.get(name) == header else header)
            self._headers[name] = header
        except OSError as error:
            raise _unwritable(Path(file.name), error) from error


def _columns(letter: str, directions: str | list[str]) -> str:
    return " ".join(f"{source}_{letter}{direction}" for source in ("data", "pred") for direction in directions)


def _beside(batch: MicroBatch, label: str, predicted: NDArray, width: int) -> NDArray:
    rows = predicted.reshape(-1, width)
    given = batch.labels[label].reshape(-1, width) if label in batch.labels else np.full_like(rows, np.nan)
    return np.concatenate([given, rows], axis=1)


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot be written: {error.strerror or error}",
        where="--detail-file",
        value=str(path),
        remedy="name a prefix in a folder that exists and that you may write to",
    )
