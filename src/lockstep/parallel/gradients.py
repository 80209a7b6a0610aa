"""Averaging gradients over the ranks, in one message a step.

All gradients of one precision are brought into one contiguous buffer, and one in-place all-reduce sums it. The large
ones are computed there (`GradientBuffer`), the small ones copied from where autograd left them. The weight of this
rank's share, its wish to stop, the step's few scalars and the times by which the group tells waiting apart travel at
the end of the float64 buffer: on gloo a small message costs as much as 200 kB, so that they are carried for nothing.
Only a model without float64 weights sends two, and so does a float64 model whose gradients travel as float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep.gradbuffer import GradientBuffer, give_buffer
from lockstep.parallel.group import Group
from lockstep.parallel.scatter import NodeMemory

_Buffers = list[tuple[list[torch.nn.Parameter], torch.Tensor]]
_OWN = 3
"""Numbers at the beginning of the tail: the weight of the share, the sum of its gradient, and the wish to stop."""


class GradientAverager:
    """Averages the gradients of `parameters` over `group` and over the micro-batches that each rank has added up.

    Use: `zero()`; `backward()` on each micro-batch; `average(count, extras)`; optimizer step.

    Args:
        extras: how many numbers travel along.
        narrow: whether gradients are rounded to float32 on their way.
        memory: where ranks of one node have their gradients in common. `average` then leaves all but the mean of this
            rank's part to the others, and the weights that are made of it have to be spread before the next `zero`.

    Attributes:
        own: the sum of all numbers of this rank's last gradient: finite where all of them are.
        total: the same over all ranks, equal on all of them.
        stopping: above zero if any rank had been asked to stop when it came to the last `average`; the same on all
            ranks. Like the others it stays on the device.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        group: Group,
        extras: int = 0,
        narrow: bool = False,
        memory: NodeMemory | None = None,
    ) -> None:
        self._group, self._narrow, self._memory = group, narrow and group.size > 1, memory
        self._parameters = [p for p in parameters if p.requires_grad]
        assert self._parameters, "there is nothing to train"
        self._buffers, self._tail, self._arrivals = (
            self._in_one_message(extras) if memory is None else self._shared(memory)
        )
        self.own = self.total = self.stopping = self._tail.new_zeros(())
        self._parts = [pair for alike, buffer in self._buffers for pair in _carve(alike, buffer)]

    def _shared(self, memory: NodeMemory) -> tuple[_Buffers, torch.Tensor, torch.Tensor]:
        tail = memory.tails[self._group.rank]
        return [(self._parameters, memory.gradients[self._group.rank])], tail, tail[:0]

    def _in_one_message(self, extras: int) -> tuple[_Buffers, torch.Tensor, torch.Tensor]:
        """Gradients of each type of number, and the parts of the message behind those of float64."""
        device = self._parameters[0].device
        exact = [p for p in self._parameters if p.dtype == torch.float64 and not self._narrow]
        sizes = [sum(p.numel() for p in exact), _OWN + extras, self._group.size]
        self._message = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        gradients, tail, arrivals = self._message.split(sizes)
        buffers = [(exact, gradients)] if exact else []
        apart = [p for p in self._parameters if p.dtype != torch.float64 or self._narrow]
        for dtype in sorted({p.dtype for p in apart}, key=str):
            alike = [p for p in apart if p.dtype == dtype]
            buffers.append((alike, torch.zeros(sum(p.numel() for p in alike), dtype=dtype, device=device)))
        return buffers, tail, arrivals

    def zero(self) -> None:
        """Forgets all gradients. Nothing is cleared: whoever comes first overwrites what is in the buffer."""
        for parameter, part in self._parts:
            parameter.grad = None
            part.stale = True

    def average(self, count: float, extras: torch.Tensor | None = None) -> torch.Tensor:
        """Divides the sum of all ranks' gradients by the sum of their counts; returns the sum of `extras`.

        `count` is how many micro-batches this rank has added up; the sum must not be 0. A gradient that is not finite
        on any rank is so on all of them afterwards, and so are the extras.
        """
        self._collect()
        # One pass tells whether any number is not finite: their sum is then not finite either.
        self.own = torch.stack([buffer.sum(dtype=torch.float64) for _, buffer in self._buffers]).sum()
        # Filled, not assigned: a number that is assigned is copied to the device, and the copy waited for.
        self._tail[0].fill_(count)
        self._tail[1] = self.own
        self._tail[2].fill_(float(self._group.progress.stop_signal > 0))
        end = _OWN
        if extras is not None:
            end = _OWN + extras.numel()
            self._tail[_OWN:end] = extras
        sums = self._sum_of_all(count) if self._memory is None else self._memory.gather()
        self.total, self.stopping = sums[1].clone(), sums[2].clone()
        return sums[_OWN:end].clone()

    def _sum_of_all(self, count: float) -> torch.Tensor:
        """Replaces gradients by their mean over all ranks; the sums of their tails."""
        self._group.all_reduce(self._message, self._arrivals)
        for _, buffer in self._buffers:
            if buffer.dtype != torch.float64 or self._narrow:
                self._sum(buffer)
            if self._group.size > 1 or count != 1:
                buffer.div_(self._tail[0])
        return self._tail

    def _sum(self, buffer: torch.Tensor) -> None:
        """Replaces a buffer that is a message of its own by its sum over the ranks."""
        message = buffer.float() if self._narrow else buffer
        self._group.all_reduce(message)
        if message is not buffer:
            buffer.copy_(message)

    def _collect(self) -> None:
        """Brings all gradients into the buffer and points every `parameter.grad` there."""
        for parameter, part in self._parts:
            part.add(parameter.grad)
            parameter.grad = part.view


def _carve(
    parameters: list[torch.nn.Parameter], buffer: torch.Tensor
) -> list[tuple[torch.nn.Parameter, GradientBuffer]]:
    """Gives each parameter its part of the buffer, in its shape."""
    pieces = buffer.split([p.numel() for p in parameters])
    parts = [(p, GradientBuffer(piece.view(p.shape))) for p, piece in zip(parameters, pieces, strict=True)]
    for parameter, part in parts:
        give_buffer(parameter, part)
    return parts
