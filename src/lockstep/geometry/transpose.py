"""From the energy's gradient with respect to environment rows back to forces and virial.

The map is linear, with a matrix that belongs to the frame. So its adjoint, which the backward pass of a loss on
forces needs, is made of the same arrays, and no second derivative of anything is ever taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.geometry.environment import Environment


def forces_and_virial(row_gradient: Tensor, environment: Environment) -> tuple[Tensor, Tensor]:
    """Forces [B, n, 3] and virials [B, 3, 3] from dE/d(rows) [C, S, 4]."""
    pair_gradient = row_gradient.reshape(-1, 4).index_select(0, environment.slot).to(torch.float64)
    return _Transpose.apply(pair_gradient, environment)


class _Transpose(torch.autograd.Function):
    """The linear map from dE/d(row) of each pair to (forces, virial), and its adjoint."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, environment: Environment) -> tuple[Tensor, Tensor]:
        ctx.environment = environment
        e = environment
        along = (e.unit * gradient[:, 1:]).sum(dim=1)
        stretch = e.radial_slope * gradient[:, 0] + (e.angular_slope - e.angular_over_r) * along
        pair = torch.addcmul(stretch.unsqueeze(1) * e.unit, e.angular_over_r.unsqueeze(1), gradient[:, 1:])
        forces = torch.zeros(e.n_frames * e.n_atoms, 3, dtype=pair.dtype, device=pair.device)
        forces.index_add_(0, e.centre, pair)
        forces.index_add_(0, e.neighbour, pair, alpha=-1.0)
        virial = torch.stack([-(pair[p].T @ e.vector[p]) for p in e.frame_pairs])
        return forces.view(e.n_frames, e.n_atoms, 3), virial

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        e: Environment = ctx.environment
        force_bar, virial_bar = grads
        flat = force_bar.reshape(-1, 3)
        pair_bar = flat.index_select(0, e.centre) - flat.index_select(0, e.neighbour)
        strain_bar = [e.vector[p] @ bar.T for p, bar in zip(e.frame_pairs, virial_bar, strict=True)]
        pair_bar -= torch.cat(strain_bar)
        along = (e.unit * pair_bar).sum(dim=1)
        radial = e.radial_slope * along
        angular = torch.addcmul(
            ((e.angular_slope - e.angular_over_r) * along).unsqueeze(1) * e.unit,
            e.angular_over_r.unsqueeze(1),
            pair_bar,
        )
        return torch.cat([radial.unsqueeze(1), angular], dim=1), None
