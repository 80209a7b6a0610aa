"""Where a weight's gradient is summed: the agreement between those who compute gradients and those who average them.

All gradients are averaged in one buffer. A pass that is written by hand can put a large gradient straight into its
part of it; a second copy, and the time to add it, are then saved.
"""

from __future__ import annotations

from torch import Tensor

_NAME = "lockstep_gradient_buffer"


class GradientBuffer:
    """A part of the buffer, in the shape of its weight. What it holds of an earlier step is overwritten, not cleared.

    Attributes:
        view: the gradient.
        stale: whether it is that of an earlier step.
    """

    __slots__ = ("stale", "view")

    def __init__(self, view: Tensor) -> None:
        self.view, self.stale = view, True

    def claim(self) -> bool:
        """Whether who asks is the first of this step and has to overwrite `view`; all others add to it."""
        first, self.stale = self.stale, False
        return first

    def add(self, gradient: Tensor | None) -> None:
        """Add what autograd has found; nothing, where it was not asked."""
        if self.claim():
            self.view.zero_() if gradient is None else self.view.copy_(gradient)
        elif gradient is not None:
            self.view.add_(gradient)


def give_buffer(weight: Tensor, buffer: GradientBuffer) -> None:
    """Let whoever computes the gradient of `weight` by hand find the buffer."""
    setattr(weight, _NAME, buffer)


def buffer_of(weight: Tensor) -> GradientBuffer | None:
    """Where the gradient of `weight` is wanted; None where autograd is to be told of it."""
    found: GradientBuffer | None = getattr(weight, _NAME, None)
    return found
