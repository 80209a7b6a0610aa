"""Whether a run may go on: a few numbers of each step, for which the device is asked once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.device import Device
from lockstep.errors import UserError
from lockstep.parallel.watch.faults import ranks_where

if TYPE_CHECKING:
    from lockstep.parallel.group import Group


class Verdict:
    """Stops all ranks at a loss or a gradient that is not finite, and tells whether one of them was asked to stop.

    All ranks see the same sums, so that all of them come to the same. On the host a step is judged before its update.
    Where the device works behind the program's back it is judged during the next step, most of which the device has in
    its queue by then, so that it never runs idle; and before anything is shown or saved of it: see `settle`.

    Attributes:
        stopping: whether any rank had been asked to stop in a step that was judged.
    """

    def __init__(self, group: Group, device: Device) -> None:
        self._group, self._device = group, device
        self._open: deque[tuple[int, Callable[[], list[float]]]] = deque()
        self.stopping = False

    def note(self, step: int, loss: tuple[Tensor, Tensor], gradient: tuple[Tensor, Tensor], stopping: Tensor) -> None:
        """Numbers of a step: loss and sum of the gradient, each of all ranks and of this one, and the wish to stop."""
        numbers = torch.stack([number.double() for number in (*loss, *gradient, stopping)])
        self._open.append((step, self._device.fetch(numbers)))
        self._judge(left=1 if self._device.behind else 0)

    def settle(self) -> None:
        """Judge all steps up to the present one; whatever is shown or saved comes after it, on all ranks."""
        self._judge(left=0)

    def _judge(self, left: int) -> None:
        while len(self._open) > left:
            step, found = self._open.popleft()
            loss, own_loss, gradient, own_gradient, stopping = found()
            self._refuse_nonfinite("loss", loss, own_loss, step)
            self._refuse_nonfinite("gradient", gradient, own_gradient, step)
            self.stopping = stopping > 0

    def _refuse_nonfinite(self, what: str, total: float, own: float, step: int) -> None:
        if math.isfinite(total):
            return
        ranks = ranks_where(self._group, not math.isfinite(own))
        where = f", on rank {', '.join(map(str, ranks))}" if self._group.size > 1 and ranks else ""
        raise UserError(
            f"the {what} is not a finite number at step {step}{where}",
            remedy="look for wrong labels (dp test -d on the training data), or lower learning_rate.start_lr; "
            "what was saved before is whole",
        )
