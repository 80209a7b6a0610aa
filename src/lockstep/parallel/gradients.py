"""Averaging gradients over the ranks, in one message a step.

All gradients of one precision are brought into one contiguous buffer, and one in-place all-reduce sums it. The large
ones are computed there (`parameter.main_grad`), the small ones copied from where autograd left them. The weight of
this rank's share, the step's few scalars and the times by which the group tells waiting apart travel at the end of the
float64 buffer: on gloo a small message costs as much as 200 kB, so that they are carried for nothing. Only a model
without float64 weights sends two.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep.parallel.group import Group


class GradientAverager:
    """Averages the gradients of `parameters` over `group` and over the micro-batches that each rank has added up.

    Use: `zero()`; `backward()` on each micro-batch; `average(count, extras)`; optimizer step.

    Attributes:
        own: the sum of all numbers of this rank's last gradient: finite where all of them are.
        total: the same over all ranks, equal on all of them.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Group, extras: int = 0) -> None:
        self._group = group
        self._parameters = [p for p in parameters if p.requires_grad]
        assert self._parameters, "there is nothing to train"
        device = self._parameters[0].device
        exact = [p for p in self._parameters if p.dtype == torch.float64]
        sizes = [sum(p.numel() for p in exact), 2 + extras, group.size]
        self._message = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        gradients, self._tail, self._arrivals = self._message.split(sizes)
        self._buffers = [(exact, gradients)] if exact else []
        for dtype in sorted({p.dtype for p in self._parameters} - {torch.float64}, key=str):
            alike = [p for p in self._parameters if p.dtype == dtype]
            self._buffers.append((alike, torch.zeros(sum(p.numel() for p in alike), dtype=dtype, device=device)))
        self.own = self.total = self._tail.new_zeros(())
        self._views = [pair for alike, buffer in self._buffers for pair in _carve(alike, buffer)]

    def zero(self) -> None:
        """Forgets all gradients. Nothing is cleared: whoever comes first overwrites what is in the buffer."""
        for parameter, view in self._views:
            parameter.grad = None
            # For functions that add to the gradient themselves instead of handing autograd a copy.
            parameter.main_grad, parameter.main_grad_old = view, True  # type: ignore[attr-defined]

    def average(self, count: float, extras: torch.Tensor | None = None) -> torch.Tensor:
        """Divides the sum of all ranks' gradients by the sum of their counts; returns the sum of `extras`.

        `count` is how many micro-batches this rank has added up; the sum must not be 0. A gradient that is not finite
        on any rank is so on all of them afterwards, and so are the extras.
        """
        self._collect()
        # One pass tells whether any number is not finite: their sum is then not finite either.
        self.own = torch.stack([buffer.sum(dtype=torch.float64) for _, buffer in self._buffers]).sum()
        self._tail[0], self._tail[1] = count, self.own
        if extras is not None:
            self._tail[2:] = extras
        self._group.all_reduce(self._message, self._arrivals)
        for _, buffer in self._buffers:
            if buffer.dtype != torch.float64:
                self._group.all_reduce(buffer)
            if self._group.size > 1 or count != 1:
                buffer.div_(self._tail[0])
        self.total = self._tail[1].clone()
        return self._tail[2:].clone()

    def _collect(self) -> None:
        """Brings all gradients into the buffer and points every `parameter.grad` there."""
        for parameter, view in self._views:
            if parameter.main_grad_old:  # type: ignore[attr-defined]
                view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
            elif parameter.grad is not None:
                view.add_(parameter.grad)
            parameter.grad = view


def _carve(parameters: list[torch.nn.Parameter], buffer: torch.Tensor) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Each parameter with its part of the buffer, in its shape."""
    pieces = buffer.split([p.numel() for p in parameters])
    return [(p, piece.view(p.shape)) for p, piece in zip(parameters, pieces, strict=True)]
