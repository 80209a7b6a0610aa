"""The `validating` section: a look at all validation data now and then, by which the best weights are kept."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from lockstep.config import unsupported
from lockstep.config.section import Count, Flag, NonNegative, Section, Text, wrong

QUANTITIES = {"E": "energy", "F": "force", "FR": "force", "FM": "force_mag", "V": "virial"}
"""What a metric may be of, and the label that it needs."""


def _metric(value: Any) -> Any:
    quantity, _, kind = str(value).upper().partition(":")
    if quantity not in QUANTITIES or kind not in ("MAE", "RMSE"):
        raise wrong(f"expected one of {', '.join(QUANTITIES)} with :MAE or :RMSE, such as 'F:RMSE'")
    return f"{quantity}:{kind}"


class ValidatingConfig(Section):
    """Errors on all validation data, and the checkpoints that are kept for being best."""

    unsupported_keys: ClassVar[dict[str, object]] = unsupported.VALIDATING

    full_validation: Flag = False
    """Whether all frames of `training.validation_data` are looked at now and then."""
    validation_freq: Count = 5000
    """Look at them every this many steps."""
    full_val_start: NonNegative = 0.5
    """From when on: a part of the run below 1, or a step above; 1 is never."""
    full_val_file: Text = "val.log"
    """The file of these errors."""
    validation_metric: Annotated[str, BeforeValidator(_metric)] = "E:MAE"
    """The error by which weights are best: energy `E`, force `F` (`FR` and `FM` with spin) or virial `V`, with `:MAE`
    or `:RMSE`; energies and virials per atom."""
    save_best: Flag = True
    """Keep a checkpoint of the best weights, as best.ckpt-STEP."""
    save_best_dir: Text | None = None
    """The folder of these; null for that of `training.save_ckpt`."""
    max_best_ckpt: Count = 1
    """How many of the best are kept."""

    def first_step(self, numb_steps: int) -> int | None:
        """The step from which on they are looked at; None for never."""
        start = self.full_val_start
        if not self.full_validation or start == 1:
            return None
        return int(start * numb_steps) if start < 1 else int(start)
