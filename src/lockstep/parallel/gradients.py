"""Averaging gradients over the ranks, in one message a step.

All gradients live in one contiguous buffer: `parameter.grad` is a view of it, `backward()` accumulates into it,
and one in-place all-reduce sums it, together with the weight of this rank's share and the step's few scalars.
On gloo a small message costs as much as 200 kB, so that metrics travel for nothing here, and with them the times
by which the group tells waiting for slower ranks apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep.parallel.group import Group


class GradientAverager:
    """Averages the gradients of `parameters` over `group`, weighted by what each rank has contributed.

    Use: `zero()`; `backward()` on each micro-batch; `average(weight, extras)`; optimizer step.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Group, extras: int = 0) -> None:
        self._group = group
        self._parameters = [p for p in parameters if p.requires_grad]
        assert self._parameters, "there is nothing to train"
        kinds = {(p.dtype, p.device) for p in self._parameters}
        assert len(kinds) == 1, f"trainable parameters must share one type and device, found {kinds}"
        self._extras = extras
        total = sum(p.numel() for p in self._parameters)
        first = self._parameters[0]
        self._buffer = torch.zeros(total + 1 + extras + group.size, dtype=first.dtype, device=first.device)
        self._gradients, self._tail, self._arrivals = self._buffer.split([total, 1 + extras, group.size])
        self._views = self._carve()

    def zero(self) -> None:
        """Clears all gradients and points every `parameter.grad` into the buffer."""
        self._gradients.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
            # For functions that add to the gradient themselves instead of handing autograd a copy.
            parameter.main_grad = view  # type: ignore[attr-defined]

    def average(self, weight: float, extras: torch.Tensor | None = None) -> torch.Tensor:
        """Replaces each gradient g by sum(w g) / sum(w) over the ranks; returns the sum of `extras` over the ranks.

        `weight` is this rank's w, for example its number of frames or micro-batches; the sum must not be 0. A
        gradient that is not finite on any rank is so on all of them afterwards, and so are the extras.
        """
        self._collect()
        self._tail[0] = weight
        if extras is not None:
            self._tail[1:] = extras
        if weight != 1:
            self._gradients.mul_(weight)
        self._group.all_reduce(self._buffer, self._arrivals)
        self._gradients.div_(self._tail[0])
        return self._tail[1:].clone()

    def _carve(self) -> list[torch.Tensor]:
        pieces = self._gradients.split([p.numel() for p in self._parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._parameters, strict=True)]

    def _collect(self) -> None:
        """Brings home gradients that someone has replaced or dropped since `zero()`; normally none."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is view:
                continue
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view
